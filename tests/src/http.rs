//! The client side of a test: ordinary requests, and requests written byte by byte.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// No request of these tests takes longer, on the slowest machine that runs them.
const TIMEOUT: Duration = Duration::from_mins(5);

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The code of the status line.
    pub status: u16,
    /// Names in lower case, in the order in which they came.
    pub headers: Vec<(String, String)>,
    /// As received.
    pub body: Vec<u8>,
}

impl Reply {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    ///
    /// # Panics
    /// If it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body of this server is UTF-8")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("status {}, {error}: {}", self.status, String::from_utf8_lossy(&self.body)))
    }

    /// The `code` of an `error` body.
    pub fn error_code(&self) -> Option<String> {
        self.json()["error"]["code"].as_str().map(str::to_owned)
    }
}

/// A client of one server.
#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    inner: reqwest::blocking::Client,
}

impl Client {
    /// A client that keeps its connections open.
    ///
    /// # Panics
    /// If the HTTP library cannot start.
    pub fn new(address: SocketAddr) -> Self {
        let inner = reqwest::blocking::Client::builder()
            .no_proxy()
            .timeout(TIMEOUT)
            .build()
            .expect("a plain client has nothing to fail on");
        Self { address, inner }
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `GET` without a body.
    pub fn get(&self, path: &str) -> Reply {
        self.request("GET", path, &[], Vec::new())
    }

    /// `POST` of a JSON text.
    pub fn post(&self, path: &str, body: impl Into<Vec<u8>>) -> Reply {
        self.request("POST", path, &[("content-type", "application/json")], body.into())
    }

    /// `POST` of a JSON text with a bearer key.
    pub fn post_as(&self, key: &str, path: &str, body: impl Into<Vec<u8>>) -> Reply {
        let authorization = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", authorization.as_str())];
        self.request("POST", path, &headers, body.into())
    }

    /// Any request.
    ///
    /// # Panics
    /// If no reply comes.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Reply {
        self.try_request(method, path, headers, body).unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    }

    /// Any request, for servers that may refuse the connection.
    ///
    /// # Errors
    /// What the HTTP library reports.
    ///
    /// # Panics
    /// If the method is not a token.
    pub fn try_request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Reply, reqwest::Error> {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method is a token");
        let mut request = self.inner.request(method, format!("http://{}{path}", self.address)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send()?;
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        Ok(Reply { status: response.status().as_u16(), headers, body: response.bytes()?.to_vec() })
    }

    /// A connection of its own, for requests that no library would send.
    ///
    /// # Panics
    /// If the server does not accept it.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server accepts connections");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout above zero is valid");
        stream
    }

    /// Sends bytes as they are on a connection of their own and reads one reply. Reading goes on while the rest is
    /// still being written, because a refusal may come before the body has been taken.
    ///
    /// # Panics
    /// If no complete reply comes.
    pub fn exchange(&self, request: &[u8]) -> Reply {
        let mut reading = self.connect();
        let mut writing = reading.try_clone().expect("a socket can be cloned");
        thread::scope(|scope| {
            // The server may close its side early; then there is nobody to write to.
            scope.spawn(move || drop(writing.write_all(request)));
            let reply = read_reply(&mut reading);
            // Unblocks a writer whose rest nobody takes any more; the server may have closed already.
            drop(reading.shutdown(Shutdown::Both));
            reply.unwrap_or_else(|error| panic!("no reply: {error}"))
        })
    }
}

/// The head and body of a request with a JSON body, for [`Client::exchange`].
pub fn raw_post(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: synod\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// Reads a head and as much body as `content-length` says.
///
/// # Errors
/// If the connection ends or times out before the reply is complete, or its head is not HTTP.
pub fn read_reply(stream: &mut impl Read) -> io::Result<Reply> {
    let mut received = Vec::new();
    let head_end = loop {
        if let Some(at) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        read_more(stream, &mut received)?;
    };
    let head = String::from_utf8_lossy(&received[..head_end]).into_owned();
    let not_http = || io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP head: {head}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").map_or(Ok(0), |(_, value)| value.parse());
    let end = head_end + length.map_err(|_| not_http())?;
    while received.len() < end {
        read_more(stream, &mut received)?;
    }
    Ok(Reply { status: status.ok_or_else(not_http)?, headers, body: received[head_end..end].to_vec() })
}

fn read_more(stream: &mut impl Read, received: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    match stream.read(&mut buffer)? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        length => {
            received.extend_from_slice(&buffer[..length]);
            Ok(())
        }
    }
}
