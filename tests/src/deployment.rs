//! Deployment files for the tests: the fixture members on the processor, on a free port of the loopback.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::fixtures;

/// A deployment file in the making.
#[derive(Clone, Debug, Default)]
pub struct Deployment {
    server: String,
    tables: String,
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Member {
    name: String,
    package: PathBuf,
    aliases: Vec<String>,
    profile: &'static str,
    devices: Vec<String>,
    lines: String,
}

impl Deployment {
    /// The named fixture members under their own names.
    pub fn of(members: &[&str]) -> Self {
        members.iter().fold(Self::default(), |deployment, member| {
            deployment.member(member, &fixtures::path(&format!("members/{member}")))
        })
    }

    /// One more member, served as `name` from a package that is anchored by its manifest's digest.
    #[must_use]
    pub fn member(mut self, name: &str, package: &Path) -> Self {
        let member = Member {
            name: name.to_owned(),
            package: package.to_owned(),
            aliases: Vec::new(),
            profile: "fp32",
            devices: vec!["cpu:*".to_owned()],
            lines: String::new(),
        };
        self.members.push(member);
        self
    }

    /// Another name for the member that was added last.
    ///
    /// # Panics
    /// If there is no member yet.
    #[must_use]
    pub fn alias(mut self, alias: &str) -> Self {
        self.members.last_mut().expect("a member comes before its alias").aliases.push(alias.to_owned());
        self
    }

    /// The devices of the member that was added last, instead of all cores as one.
    ///
    /// # Panics
    /// If there is no member yet.
    #[must_use]
    pub fn devices(mut self, devices: &[&str]) -> Self {
        let member = self.members.last_mut().expect("a member comes before its devices");
        member.devices = devices.iter().map(|&device| device.to_owned()).collect();
        self
    }

    /// A line of the table of the member that was added last.
    ///
    /// # Panics
    /// If there is no member yet.
    #[must_use]
    pub fn member_line(mut self, line: &str) -> Self {
        let lines = &mut self.members.last_mut().expect("a member comes before its lines").lines;
        let _ = writeln!(lines, "{line}");
        self
    }

    /// The member that was added last in BF16.
    ///
    /// # Panics
    /// If there is no member yet.
    #[must_use]
    pub fn bf16(mut self) -> Self {
        self.members.last_mut().expect("a member comes before its profile").profile = "bf16";
        self
    }

    /// A line of the `[server]` table.
    #[must_use]
    pub fn server(mut self, line: &str) -> Self {
        let _ = writeln!(self.server, "{line}");
        self
    }

    /// Whole tables, as TOML.
    #[must_use]
    pub fn tables(mut self, toml: &str) -> Self {
        let _ = writeln!(self.tables, "{toml}");
        self
    }

    /// A key that may ask `models` (all of them if that is empty).
    #[must_use]
    pub fn key(self, name: &str, secret: &str, models: &[&str]) -> Self {
        let digest = fixtures::sha256(secret.as_bytes());
        let models = if models.is_empty() { String::new() } else { format!("models = {models:?}\n") };
        self.tables(&format!("[[key]]\nname = {name:?}\nsha256 = {digest:?}\n{models}"))
    }

    /// The file's text.
    ///
    /// # Panics
    /// If a package is missing.
    pub fn to_toml(&self) -> String {
        let mut toml = format!("[server]\nbind = \"127.0.0.1:0\"\n{}\n{}", self.server, self.tables);
        for member in &self.members {
            let _ = write!(
                toml,
                "[[member]]\nname = {:?}\npath = {:?}\nanchor = {:?}\nprofile = {:?}\ndevices = {:?}\naliases = {:?}\n{}\n",
                member.name,
                member.package.to_str().expect("the path of a package is UTF-8"),
                fixtures::anchor(&member.package),
                member.profile,
                member.devices,
                member.aliases,
                member.lines,
            );
        }
        toml
    }
}
