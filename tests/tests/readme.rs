//! The README's request to the demonstration has the answer that the README shows.

use std::fs;
use std::path::Path;

use synod_tests::json_text;
use synod_tests::server::Server;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");

#[test]
fn the_demonstration_answers_as_the_readme_says() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(&readme).expect("the repository has a README");
    let (_, after) = readme.split_once("-d '\n").expect("a curl line with a body");
    let (request, after) = after.split_once('\'').expect("the body ends");
    let shown = after.lines().find(|line| line.starts_with("{\"model\"")).expect("an answer follows");
    let server = Server::start_with(SYNOD, &["serve", "--demo", "--bind", "127.0.0.1:0"]);
    let reply = server.ask(request);
    assert_eq!(reply.status, 200, "{}", reply.text());
    json_text::compare(shown, reply.text(), 2e-5).unwrap_or_else(|difference| panic!("{difference}"));
}
