//! What an operator sees: systemd's notifications, the state of everything, cards, loading again, scrapes that
//! Prometheus takes.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use synod_tests::deployment::Deployment;
use synod_tests::fixtures;
use synod_tests::http::Client;
use synod_tests::server::{Launch, Server, eventually};

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const GOOD: &str = r#"{"state":"It is late.","questions":{"q":{"type":"noul","instructions":"Is it late?"}}}"#;

fn deployment() -> Deployment {
    Deployment::of(&["tiny-08b"]).server("admin = \"127.0.0.1:0\"")
}

/// Nothing within a minute is a failure, not a test that hangs.
fn notifications(folder: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(folder.join("notify")).expect("the folder of a test is writable");
    socket.set_read_timeout(Some(Duration::from_mins(1))).expect("a timeout above zero is valid");
    socket
}

/// Reads notifications until one has this line.
fn wait_for(socket: &UnixDatagram, line: &str) {
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("no {line}: {error}"));
        if String::from_utf8_lossy(&buffer[..length]).lines().any(|found| found == line) {
            return;
        }
    }
}

#[test]
fn systemd_hears_of_the_start_of_a_reload_and_of_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = notifications(folder.path());
    let address = folder.path().join("notify");
    let mut server = Launch::of(SYNOD).environment("NOTIFY_SOCKET", address.to_str().unwrap()).start(&deployment());
    wait_for(&socket, "READY=1");
    server.hang_up();
    wait_for(&socket, "RELOADING=1");
    wait_for(&socket, "READY=1");
    server.terminate();
    wait_for(&socket, "STOPPING=1");
    assert!(server.wait().success());
}

#[test]
fn the_state_of_everything_is_on_the_admin_address_alone() {
    let server = Server::start(SYNOD, &deployment().devices(&["cpu:0", "cpu:1"]));
    assert_eq!(server.ask(fixtures::with_model(GOOD, "tiny-08b")).status, 200);
    for (method, path) in [("GET", "/admin/state"), ("POST", "/admin/reload"), ("GET", "/metrics")] {
        assert_eq!(server.client().request(method, path, &[], Vec::new()).status, 404, "{path}");
    }
    let state = server.admin().get("/admin/state").json();
    assert_eq!((&state["draining"], &state["inflight"]), (&json!(false), &json!({"requests": 0, "tokens": 0})));
    let member = &state["members"][0];
    assert_eq!((&member["name"], &member["ready"]), (&json!("tiny-08b"), &json!(true)));
    let executors = member["executors"].as_array().unwrap();
    let devices: Vec<&Value> = executors.iter().map(|executor| &executor["device"]).collect();
    assert_eq!(devices, ["cpu:0", "cpu:1"]);
    assert!(executors.iter().all(|executor| executor["state"] == "ready" && executor["load_tokens"] == 0));
    assert!(executors.iter().any(|executor| executor["tokens_per_second"].as_f64().is_some_and(|rate| rate > 0.0)));
    let caches = executors.iter().map(|executor| &executor["prefix_cache"]);
    let misses: u64 = caches.clone().filter_map(|cache| cache["misses"].as_u64()).sum();
    assert!(misses == 1 && caches.clone().all(|cache| cache["bound_bytes"] == 256 << 20), "{state}");
    assert!(executors.iter().all(|executor| executor["queue"] == json!({"requests": 0, "tokens": 0})));
    assert!(executors.iter().all(|executor| executor["verification"] == "unverified"), "{state}");
    assert!(executors.iter().all(|executor| executor["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20)));
}

#[test]
fn a_broken_deployment_file_changes_nothing_and_says_why() {
    let server = Server::start(SYNOD, &deployment());
    let reload = || server.admin().request("POST", "/admin/reload", &[], Vec::new());
    server.change(&deployment().alias("late").to_toml());
    let reply = reload();
    assert_eq!(
        (reply.status, reply.json()),
        (200, json!({"executors": {"kept": 1, "started": 0, "stopped": 0}, "warnings": []}))
    );
    assert_eq!(server.ask(fixtures::with_model(GOOD, "late")).status, 200);

    server.change(&deployment().to_toml().replace("profile", "profil"));
    let reply = reload();
    assert_eq!((reply.status, reply.error_code().as_deref()), (409, Some("reload")), "{}", reply.text());
    assert!(reply.text().contains("member.profil: unknown key"), "{}", reply.text());
    assert_eq!(server.ask(fixtures::with_model(GOOD, "late")).status, 200, "nothing has changed");

    server.change(&deployment().to_toml().replace("bind = \"127.0.0.1:0\"", "bind = \"127.0.0.1:1\""));
    let reply = reload();
    let warned = json!(["server.bind: is as it was until the server is started again"]);
    assert_eq!((reply.status, &reply.json()["warnings"]), (200, &warned));
    assert_eq!(server.ask(fixtures::with_model(GOOD, "late")).status, 404, "the alias is gone");
}

/// Where the virtual cards were built.
fn rig() -> &'static Path {
    static RIG: OnceLock<PathBuf> = OnceLock::new();
    RIG.get_or_init(|| {
        let built = Command::new("bash").arg(format!("{ROOT}/tests/rig/build.sh")).status();
        assert!(built.is_ok_and(|status| status.success()), "tests/rig/build.sh failed; it needs g++");
        Path::new(ROOT).join("target/rig")
    })
}

/// A server that sees these cards, once it has looked, and what it shows of them.
fn with_cards(cards: &str, faults: &str) -> (Server, Value) {
    let server = Launch::of(SYNOD)
        .environment("LD_LIBRARY_PATH", rig().to_str().expect("the path of the project is UTF-8"))
        .environment("SYNOD_RIG_CARDS", cards)
        .environment("SYNOD_RIG_NVML", faults)
        .start(&deployment());
    let admin = server.admin();
    let shown = || admin.get("/admin/state").json()["cards"].take();
    assert!(faults.contains("hangs") || eventually(|| shown()["state"] != "unknown"));
    (server, shown())
}

#[test]
fn cards_are_shown_with_their_sensors() {
    let (server, shown) = with_cards("2x24GiB", "");
    let card = json!({
        "device": "cuda:1",
        "uuid": "GPU-00000000-0000-0000-0000-000000000001",
        "name": "Virtual card",
        "total_bytes": 24_u64 << 30,
        "free_bytes": 23_u64 << 30,
        "compute_capability": "9.0",
        "ecc": true,
        "throttled_by": ["sw_power_cap"],
        "defect": null,
    });
    assert_eq!((&shown["state"], &shown["driver"], &shown["cards"][1]), (&json!("present"), &json!("570.00"), &card));
    let text = server.admin().get("/metrics");
    for line in [
        r#"synod_device_memory_bytes{device="cuda:0",kind="total",member=""} 25769803776"#,
        r#"synod_device_memory_bytes{device="cuda:0",kind="used",member=""} 1073741824"#,
        r#"synod_device_utilization_ratio{device="cuda:0",uuid="GPU-00000000-0000-0000-0000-000000000000"} 0.25"#,
        r#"synod_device_temperature_celsius{device="cuda:0",uuid="GPU-00000000-0000-0000-0000-000000000000"} 41"#,
        r#"synod_device_power_watts{device="cuda:0",uuid="GPU-00000000-0000-0000-0000-000000000000"} 70.5"#,
    ] {
        assert!(text.text().contains(line), "{line} is not in {}", text.text());
    }
}

/// None of it keeps the server from serving.
#[test]
fn an_nvml_that_is_absent_fails_or_lies_is_a_state_with_a_message() {
    let without = Server::start(SYNOD, &deployment());
    let shown = || without.admin().get("/admin/state").json()["cards"].take();
    assert!(eventually(|| shown()["state"] == "absent"), "{}", shown());
    assert!(
        shown()["reason"]
            .as_str()
            .unwrap()
            .starts_with("libnvidia-ml.so.1, which comes with a driver, cannot be loaded")
    );

    let defect = |shown: &Value, card: usize| shown["cards"][card]["defect"].clone();
    let (_server, shown) = with_cards("2x24GiB", "no-driver");
    assert_eq!(shown, json!({"state": "absent", "reason": "the NVIDIA driver is not loaded"}));
    let (_server, shown) = with_cards("2x24GiB", "lost");
    assert_eq!(
        (defect(&shown, 0), defect(&shown, 1)),
        (json!(null), json!("it fell off the bus or is otherwise lost"))
    );
    let (_server, shown) = with_cards("2x24GiB", "free-above-total");
    let found = defect(&shown, 0);
    assert!(found.as_str().unwrap().ends_with("bytes of its memory are said to be free"), "{found}");
    let (_server, shown) = with_cards("2x24GiB", "same-uuid");
    assert_eq!((defect(&shown, 0), defect(&shown, 1)), (json!(null), json!("another card has the same UUID")));
    let (_server, shown) = with_cards("2x0GiB", "");
    assert_eq!(defect(&shown, 0), "its memory is said to be 0 bytes");
    let (server, shown) = with_cards("2x24GiB", "hangs");
    assert_eq!(shown["state"], "unknown");
    assert_eq!(server.ask(fixtures::with_model(GOOD, "tiny-08b")).status, 200);
}

/// Ends with the test.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

#[test]
fn promtool_finds_nothing_to_say_of_a_scrape() {
    if !is_installed("promtool") {
        eprintln!("skipped: promtool is not installed (Debian: prometheus)");
        return;
    }
    let (server, _) = with_cards("1x24GiB", "");
    assert_eq!(server.ask(fixtures::with_model(GOOD, "tiny-08b")).status, 200);
    assert_eq!(server.ask("{").status, 400);
    let folder = tempfile::tempdir().unwrap();
    let scrape = folder.path().join("scrape");
    std::fs::write(&scrape, server.admin().get("/metrics").body).unwrap();
    let scrape = std::fs::File::open(scrape).unwrap();
    let checked = Command::new("promtool").args(["check", "metrics"]).stdin(scrape).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && said.trim().is_empty(), "{said}");
}

/// A Prometheus of its own scrapes the server; what it then knows is what the server counted.
#[test]
fn prometheus_scrapes_what_was_counted() {
    if !is_installed("prometheus") {
        eprintln!("skipped: prometheus is not installed (Debian: prometheus)");
        return;
    }
    let server = Server::start(SYNOD, &deployment());
    for _ in 0..3 {
        assert_eq!(server.ask(fixtures::with_model(GOOD, "tiny-08b")).status, 200);
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("prometheus.yml");
    let target = server.admin().address();
    let text = format!(
        "global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: synod\n  static_configs:\n  - targets: ['{target}']\n"
    );
    std::fs::write(&config, text).unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _prometheus = Prometheus(child);
    let client = Client::new(address);
    let value = |query: &str| {
        let reply = client.try_request("GET", &format!("/api/v1/query?query={query}"), &[], Vec::new()).ok()?;
        serde_json::from_slice::<Value>(&reply.body).ok()?["data"]["result"][0]["value"][1].as_str().map(str::to_owned)
    };
    let answered = "synod_outcomes_total%7Boutcome%3D%22answered%22%7D";
    assert!(eventually(|| value(answered).as_deref() == Some("3")), "{:?}", value(answered));
    assert_eq!(value("up").as_deref(), Some("1"));
    assert_eq!(value("synod_executor_state%7Bstate%3D%22ready%22%7D").as_deref(), Some("1"));
}
