//! One `synod serve` process: started on a free port, ready before a test uses it, gone when the test ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::deployment::Deployment;
use crate::http::{Client, Reply};

/// Loading a fixture member takes well under a second; the rest is for a machine that is busy with other tests.
const START_LIMIT: Duration = Duration::from_mins(2);
const STOP_LIMIT: Duration = Duration::from_mins(1);
/// Between two questions whether something has happened yet. Every loop that uses it ends at a deadline.
const POLL: Duration = Duration::from_millis(20);

/// A running server and a client of it.
pub struct Server {
    child: Child,
    client: Client,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    /// The folder of the deployment file.
    folder: TempDir,
}

/// How a server is started, where it is not in the plain way.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    program: Vec<String>,
    environment: Vec<(String, String)>,
    is_awaited: bool,
}

impl Launch {
    /// The plain way. `synod` is the path of the binary, which only an integration test knows:
    /// `env!("CARGO_BIN_EXE_synod-tested")`.
    pub fn of(synod: &str) -> Self {
        Launch { program: vec![synod.to_owned()], environment: Vec::new(), is_awaited: true }
    }

    /// Has another program start it, such as `faketime`.
    #[must_use]
    pub fn through(mut self, program: &[&str]) -> Self {
        self.program.splice(0..0, program.iter().map(|&word| word.to_owned()));
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Does not wait until it is ready, only until it takes requests.
    #[must_use]
    pub fn without_waiting(mut self) -> Self {
        self.is_awaited = false;
        self
    }

    /// Starts `synod serve` on a deployment.
    ///
    /// # Panics
    /// If the process ends, or is not ready within two minutes; the message holds what it wrote.
    pub fn start(&self, deployment: &Deployment) -> Server {
        let folder = temporary_folder();
        let config = deployment_file(&folder);
        fs::write(&config, deployment.to_toml()).expect("a temporary folder is writable");
        let config = config.to_str().expect("a temporary path is UTF-8").to_owned();
        Server::spawn(self, &["serve", "--config", &config], folder)
    }
}

impl Server {
    /// Starts `synod serve` on a deployment and waits until it is ready.
    ///
    /// # Panics
    /// As [`Launch::start`].
    pub fn start(synod: &str, deployment: &Deployment) -> Self {
        Launch::of(synod).start(deployment)
    }

    /// Starts `synod` with these arguments, which must make it serve, and waits until it is ready.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_with(synod: &str, arguments: &[&str]) -> Self {
        Self::spawn(&Launch::of(synod), arguments, temporary_folder())
    }

    fn spawn(launch: &Launch, arguments: &[&str], folder: TempDir) -> Self {
        let program = &launch.program[0];
        let mut child = Command::new(program)
            .args(&launch.program[1..])
            .args(arguments)
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let output = Arc::new(Mutex::new(String::new()));
        let (address_sender, address) = mpsc::channel();
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().expect("stderr is piped");
        let readers = vec![
            collect(stdout, Arc::clone(&output), Some(address_sender)),
            collect(stderr, Arc::clone(&output), None),
        ];
        // The sender is dropped when stdout ends, so that a process that fails to start is noticed at once.
        let Ok(address) = address.recv_timeout(START_LIMIT) else {
            drop(child.kill());
            panic!("no address from synod {arguments:?}: {:?}\n{}", child.wait(), locked(&output));
        };
        let mut server = Self { child, client: Client::new(address), output, readers, folder };
        if launch.is_awaited {
            server.wait_until_ready();
        }
        server
    }

    /// Waits until every member serves.
    ///
    /// # Panics
    /// If the process ends, or is not ready within two minutes; the message holds what it wrote.
    pub fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let client = self.find_admin().unwrap_or_else(|| self.client.clone());
            let reply = client.try_request("GET", "/health/ready", &[], Vec::new());
            if reply.as_ref().is_ok_and(|reply| reply.status == 200) {
                return;
            }
            let ended = self.child.try_wait().expect("a child can be asked for its status");
            let late = Instant::now() > deadline;
            assert!(ended.is_none() && !late, "not ready: {ended:?}, {reply:?}\n{}", self.output());
            thread::sleep(POLL);
        }
    }

    /// A client of this server.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// `POST /v1/systemone`.
    pub fn ask(&self, body: impl Into<Vec<u8>>) -> Reply {
        self.client.post("/v1/systemone", body)
    }

    /// Everything that the process has written so far, both streams together.
    pub fn output(&self) -> String {
        locked(&self.output)
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// A client of the admin address.
    ///
    /// # Panics
    /// If the deployment has none.
    pub fn admin(&self) -> Client {
        self.find_admin().expect("an admin address is announced")
    }

    fn find_admin(&self) -> Option<Client> {
        let output = self.output();
        let address = output.lines().find_map(|line| line.strip_prefix("health and metrics on http://"))?;
        Some(Client::new(address.parse().expect("what is announced is an address")))
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// If there is no `kill`.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Has the deployment file say something else. The server does not know until it is told to look.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn change(&self, toml: &str) {
        // As an editor does: nobody ever reads half of it.
        let file = deployment_file(&self.folder);
        let draft = file.with_extension("draft");
        fs::write(&draft, toml).and_then(|()| fs::rename(&draft, &file)).expect("a temporary folder is writable");
    }

    /// Sends SIGHUP.
    ///
    /// # Panics
    /// If there is no `kill`.
    pub fn hang_up(&self) {
        self.signal("HUP");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        let status = status.expect("kill is there");
        assert!(status.success(), "kill -{name}: {status}");
    }

    /// Waits for the end of the process, and for the last line of its output.
    ///
    /// # Panics
    /// If it does not end within a minute.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked for its status") {
                for reader in self.readers.drain(..) {
                    reader.join().expect("a reader does not panic");
                }
                return status;
            }
            assert!(Instant::now() < deadline, "still running:\n{}", self.output());
            thread::sleep(POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when the process has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            eprintln!("output of the server:\n{}", self.output());
        }
    }
}

/// Whether a condition comes true within a minute. For what a server does by itself after a reply, such as counting.
pub fn eventually(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + STOP_LIMIT;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(POLL);
    }
    true
}

fn deployment_file(folder: &TempDir) -> PathBuf {
    folder.path().join("deployment.toml")
}

fn temporary_folder() -> TempDir {
    tempfile::tempdir().expect("there is a place for temporary files")
}

fn locked(output: &Mutex<String>) -> String {
    output.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Copies a stream to `output` line by line, and the address that it announces to `address`.
fn collect(
    stream: impl Read + Send + 'static,
    output: Arc<Mutex<String>>,
    address: Option<Sender<SocketAddr>>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut address = address;
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if let Some(found) = announced(&line)
                && let Some(address) = address.take()
            {
                // Nobody waits any more once the start has been given up.
                let _ = address.send(found);
            }
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            output.push_str(&line);
            output.push('\n');
        }
    })
}

/// The address in a line like `listening on http://127.0.0.1:41234`.
fn announced(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("listening on http://")?;
    address.trim().trim_end_matches('/').parse().ok()
}

/// What a `synod` command that ends by itself did.
pub struct Finished {
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// All that it wrote there.
    pub stdout: String,
    /// All that it wrote there.
    pub stderr: String,
}

/// Runs `synod` with these arguments in `folder`, with `stdin` as its input.
///
/// # Panics
/// If the process cannot be started or writes something that is not UTF-8.
pub fn run(synod: &str, arguments: &[&str], folder: &Path, stdin: &str) -> Finished {
    let input = folder.join("stdin");
    fs::write(&input, stdin).expect("the folder of a test is writable");
    let output = Command::new(synod)
        .args(arguments)
        .current_dir(folder)
        .stdin(fs::File::open(&input).expect("it was just written"))
        .output()
        .unwrap_or_else(|error| panic!("{synod}: {error}"));
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
    }
}
