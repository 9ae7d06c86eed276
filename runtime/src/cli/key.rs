//! `synod key`: keys for a deployment's `[[key]]` tables.

use std::io::{Write, stdout};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// What a key begins with: whoever searches texts for secrets that slipped into them finds it by this.
const PREFIX: &str = "synod_";

/// Make keys for callers.
#[derive(clap::Args)]
pub(super) struct Key {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    New(New),
}

/// Print a new random key, and the lines that let it into a deployment.
///
/// The first line of stdout is the key: 256 bits from the operating system, shown this once and written nowhere. The
/// others are for the deployment file, and hold only its digest.
#[derive(clap::Args)]
struct New {
    /// What the log is to call it
    #[arg(long, default_value = "caller")]
    name: String,
}

impl Key {
    pub(super) fn run(self) -> Result<()> {
        let Command::New(New { name }) = self.command;
        let mut random = [0; 32];
        getrandom::fill(&mut random).context("the operating system gives no random bytes")?;
        let key = format!("{PREFIX}{}", hex::encode(random));
        write!(stdout(), "{key}\n\n{}", table(&name, &key)).context("stdout")
    }
}

/// The key's table in a deployment file.
fn table(name: &str, key: &str) -> String {
    let digest = hex::encode(Sha256::digest(key));
    // A JSON string is a TOML basic string.
    format!("[[key]]\nsha256 = \"{digest}\"\nname = {}\n", serde_json::Value::from(name))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Whatever the name, the table is read as it was meant; the expected digest is `printf %s abc | sha256sum`.
    #[test]
    fn a_deployment_takes_the_table() {
        for name in ["router", "a \"quoted\" \\ name", "é"] {
            let member = "[[member]]\nname = \"m\"\npath = \"m\"\ndevices = [\"cpu:*\"]\n";
            let text = format!("{}{member}", table(name, "abc"));
            let (deployment, _) =
                synod_config::Deployment::from_toml_with(&text, Path::new("x.toml"), |_| true).unwrap();
            assert_eq!(deployment.keys[0].name, name);
            let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
            assert_eq!(hex::encode(deployment.keys[0].sha256), digest);
        }
    }
}
