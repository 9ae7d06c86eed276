//! The generator against a server that does as told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

use super::*;

/// Answers decisions one at a time. The first takes as long as told, the others no time.
struct Server {
    url: String,
    stall: Mutex<Option<Duration>>,
    answered: AtomicU64,
    /// Counted and never answered.
    miscounted: u64,
}

impl Server {
    fn start(stall: Duration, miscounted: u64) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Server { url, stall: Mutex::new(Some(stall)), answered: AtomicU64::new(0), miscounted };
        let server = Arc::new(server);
        let shared = Arc::clone(&server);
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (server, connection) = (Arc::clone(&shared), connection.unwrap());
                // The client closes its connections in the end.
                thread::spawn(move || while server.answer(&connection).is_some() {});
            }
        });
        server
    }

    fn answer(&self, connection: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            (reader.read_line(&mut head).ok()? > 0).then_some(())?;
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
        reader.read_exact(&mut vec![0; length.parse().unwrap()]).ok()?;
        let body = if head.starts_with("POST") { self.decide() } else { self.metrics() };
        write!(reader.into_inner(), "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).ok()
    }

    fn decide(&self) -> String {
        let mut stall = self.stall.lock().unwrap();
        thread::sleep(stall.take().unwrap_or_default());
        self.answered.fetch_add(1, Ordering::SeqCst);
        r#"{"usage":{"input_tokens":7}}"#.to_owned()
    }

    fn metrics(&self) -> String {
        let answered = self.answered.load(Ordering::SeqCst);
        let counted = if answered > 0 { answered + self.miscounted } else { 0 };
        format!(
            "synod_outcomes_total{{outcome=\"answered\"}} {counted}\nsynod_inflight 0\nprocess_resident_memory_bytes 5\n"
        )
    }
}

fn load(server: &Server, pace: Pace) -> Load {
    Load {
        url: server.url.clone(),
        metrics_url: None,
        key: None,
        model: None,
        kind: Kind::Small,
        pace,
        duration: Duration::from_secs(1),
        connections: 2,
        timeout: Duration::from_secs(30),
        warmup: 0,
        seed: 1,
    }
}

/// A server that stalls once for half of a run has kept half of its callers waiting, a quarter of the run on average.
/// Whoever measures from when a request was sent sees one slow request.
#[test]
fn a_stall_is_charged_for_everybody_who_came_meanwhile() {
    let server = Server::start(Duration::from_millis(500), 0);
    let report = load(&server, Pace::Open { rate: 200.0, arrivals: Arrivals::Constant }).run().unwrap();
    assert_eq!((report.sent, report.answered, report.tokens), (200, 200, 1400), "{report}");
    assert_eq!(report.disagreement, None);
    assert_eq!(report.resident_bytes, Some([5; 3]));
    assert!(report.latency.max >= Duration::from_millis(500), "{report}");
    assert!(report.windows[2].latency.p50 >= Duration::from_millis(240), "{report}");
    assert!(report.latency.p90 >= Duration::from_millis(350), "{report}");
}

#[test]
fn a_closed_loop_asks_again_when_it_has_its_answer() {
    let server = Server::start(Duration::ZERO, 0);
    let report = load(&server, Pace::Closed { clients: 2 }).run().unwrap();
    assert!(report.answered > 10 && report.sent == report.answered, "{report}");
    assert_eq!(report.disagreement, None);
    assert_eq!(report.to_json()["statuses"]["200"], report.answered);
}

#[test]
fn a_server_that_counts_wrongly_is_found_out() {
    let server = Server::start(Duration::ZERO, 1);
    let report = load(&server, Pace::Open { rate: 20.0, arrivals: Arrivals::Poisson }).run().unwrap();
    assert!(report.disagreement.is_some(), "{report}");
}
