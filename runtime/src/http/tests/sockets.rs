//! What only a real connection can do: leave, stall, send nonsense, send too much.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use actix_web::web;
use socket2::SockRef;

use super::{Harness, MAX_BODY_BYTES, Setup, admission, admission_settings, body};
use crate::http::{Surface, listen};

fn serve(harness: &Harness) -> SocketAddr {
    let any_port = ([127, 0, 0, 1], 0).into();
    let listening = listen(&harness.service, Surface::All, any_port, std::num::NonZeroUsize::new(1)).unwrap();
    actix::spawn(async { listening.server.await.unwrap() });
    listening.address
}

fn request(state: &str) -> String {
    let body = body(state);
    let length = body.len();
    format!(
        "POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Sends bytes as they are and reads until the server closes.
async fn exchange(address: SocketAddr, bytes: Vec<u8>) -> String {
    let blocking = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(&bytes);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8(reply).unwrap()
    };
    web::block(blocking).await.unwrap()
}

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Goodbye {
    HalfClose,
    Close,
    Reset,
}

/// A connection that leaves while its request is queued takes the request with it, whether it says goodbye or not.
#[actix::test]
async fn queued_work_leaves_with_its_connection() {
    for goodbye in [Goodbye::HalfClose, Goodbye::Close, Goodbye::Reset] {
        let (harness, mut strings) = Harness::start().await;
        let address = serve(&harness);
        let mut held = TcpStream::connect(address).unwrap();
        held.write_all(request("hold").as_bytes()).unwrap();
        strings.held().await;
        let mut leaving = TcpStream::connect(address).unwrap();
        leaving.write_all(request("x").as_bytes()).unwrap();
        let counted = |line: &str, count: u64| {
            let (harness, line) = (&harness, line.to_owned());
            async move {
                while harness.metric(&line) != count {
                    tokio::task::yield_now().await;
                }
            }
        };
        counted(r#"synod_queue_requests{device="cpu:0",member="m"}"#, 1).await;
        match goodbye {
            Goodbye::HalfClose => leaving.shutdown(Shutdown::Write).unwrap(),
            Goodbye::Close => drop(leaving),
            Goodbye::Reset => {
                // Closing without lingering sends RST instead of FIN.
                SockRef::from(&leaving).set_linger(Some(Duration::ZERO)).unwrap();
                drop(leaving);
            }
        }
        counted(r#"synod_outcomes_total{outcome="cancelled"}"#, 1).await;
        strings.let_go();
        counted(r#"synod_outcomes_total{outcome="answered"}"#, 1).await;
        counted(r#"synod_cancelled_total{device="cpu:0",member="m"}"#, 1).await;
        assert_eq!(strings.calls().len(), 1, "{goodbye:?}");
        harness.assert_nothing_is_counted().await;
    }
}

#[actix::test]
async fn a_body_that_stalls_is_answered_and_given_up() {
    let admission = admission::Settings { request_timeout: Duration::from_millis(50), ..admission_settings() };
    let (harness, _strings) = Harness::start_with(Setup { admission, ..Setup::default() }).await;
    let address = serve(&harness);
    let mut half = request("x").into_bytes();
    half.truncate(half.len() - 5);
    let reply = exchange(address, half).await;
    assert!(reply.starts_with("HTTP/1.1 504 "), "{reply}");
    assert!(reply.ends_with(r#""code":"body_timeout","message":"the body was not received in time"}}"#), "{reply}");
    harness.assert_nothing_is_counted().await;
}

#[actix::test]
async fn a_body_that_is_too_long_is_refused_where_the_client_can_read_it() {
    let (harness, _strings) = Harness::start().await;
    let address = serve(&harness);
    let head = "POST /v1/systemone HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
    let long = "x".repeat(200 * MAX_BODY_BYTES);
    let announced = format!("{head}content-length: {}\r\n\r\n{long}", long.len());
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    for bytes in [announced, chunked] {
        let reply = exchange(address, bytes.into_bytes()).await;
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
        assert!(reply.contains("body_too_large"), "{reply}");
    }
    harness.assert_nothing_is_counted().await;
}

#[actix::test]
async fn what_is_no_http_is_refused_and_the_server_goes_on() {
    let (harness, _strings) = Harness::start().await;
    let address = serve(&harness);
    for nonsense in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "POST /v1/systemone HTTP/1.1\r\ncontent-length: x\r\n\r\n"] {
        let reply = exchange(address, nonsense.as_bytes().to_vec()).await;
        assert!(reply.starts_with("HTTP/1.1 400 "), "{nonsense:?}: {reply}");
    }
    let good = request("x").replace("host: x\r\n", "host: x\r\nconnection: close\r\n");
    assert!(exchange(address, good.into_bytes()).await.starts_with("HTTP/1.1 200 "));
}
