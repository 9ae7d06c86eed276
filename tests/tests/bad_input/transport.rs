//! Content encodings and types, sizes, methods, routes and models.

use std::io::Write as _;

use crate::{Expected, Row, with_question, with_state};

pub(crate) fn rows() -> Vec<Row> {
    [encodings(), sizes(), media_types(), routes()].into_iter().flatten().collect()
}

fn good() -> String {
    with_state("\"late\"")
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body).expect("a vector takes every byte");
    encoder.finish().expect("a vector takes every byte")
}

fn zstd(body: &[u8]) -> Vec<u8> {
    zstd::encode_all(body, 1).expect("a vector takes every byte")
}

fn encodings() -> Vec<Row> {
    let bad = |rule: &str, body: Vec<u8>| Row::new(rule, body, Expected::Error(400, "content_encoding"));
    let plain = || good().into_bytes();
    vec![
        bad("gzip that is none", plain()).encoded("gzip"),
        bad("truncated gzip", gzip(&plain())[..20].to_vec()).encoded("gzip"),
        bad("zstd that is none", plain()).encoded("zstd"),
        bad("truncated zstd", zstd(&plain())[..20].to_vec()).encoded("zstd"),
        bad("an unknown encoding", plain()).encoded("br"),
        Row::new("gzip", gzip(&plain()), Expected::Accepted).encoded("gzip"),
        Row::new("zstd", zstd(&plain()), Expected::Accepted).encoded("zstd"),
    ]
}

/// Limits are 8 MiB before and after decompression.
fn sizes() -> Vec<Row> {
    let large = |rule: &str, body: Vec<u8>| Row::new(rule, body, Expected::Error(413, "body_too_large"));
    let string = format!("\"{}\"", "a".repeat(10_000_000));
    let bomb = [b"{\"state\":\"", " ".repeat(64 << 20).as_bytes(), b"\"}"].concat();
    vec![
        large("a state of 10 MB", with_state(&string).into_bytes()),
        large("a question of 10 MB", with_question(&string).into_bytes()),
        large("a gzip bomb", gzip(&bomb)).encoded("gzip"),
        large("a zstd bomb", zstd(&bomb)).encoded("zstd"),
    ]
}

fn media_types() -> Vec<Row> {
    let bad = |rule: &str| Row::new(rule, good(), Expected::Error(415, "content_type"));
    vec![
        Row { headers: Vec::new(), ..bad("no content type") },
        bad("plain text").content_type("text/plain"),
        bad("a form").content_type("application/x-www-form-urlencoded"),
        bad("multipart").content_type("multipart/form-data; boundary=x"),
        bad("a type that only starts alike").content_type("application/jsonp"),
        Row::new("a charset", good(), Expected::Accepted).content_type("application/json; charset=utf-8"),
    ]
}

fn routes() -> Vec<Row> {
    let wrong_method = |rule: &str, body: &str| Row::new(rule, body, Expected::Error(405, "method_not_allowed"));
    let unknown = |rule: &str, code| Row::new(rule, good(), Expected::Error(404, code));
    vec![
        wrong_method("GET of systemone", "").to("GET", "/v1/systemone"),
        wrong_method("PUT of systemone", &good()).to("PUT", "/v1/systemone"),
        wrong_method("DELETE of decisions", "").to("DELETE", "/v1/decisions"),
        wrong_method("POST of models", &good()).to("POST", "/v1/models"),
        unknown("an unknown route", "unknown_route").to("POST", "/v1/nothing"),
        unknown("a route with a trailing slash", "unknown_route").to("POST", "/v1/systemone/"),
        Row::new("an unknown model", good().replace("tiny-08b", "vela-900b"), Expected::Error(404, "unknown_model")),
        Row::new("an empty model", good().replace("tiny-08b", ""), Expected::Error(404, "unknown_model")),
    ]
}
