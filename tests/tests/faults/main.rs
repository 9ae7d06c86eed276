//! What goes wrong around a server: deployments that change, files that vanish, clients that misbehave, clocks that
//! jump, descriptors that run out. Real processes, real signals; no request is lost or answered twice.

use synod_tests::deployment::Deployment;
use synod_tests::http::Client;

mod clients;
mod clock;
mod files;
mod load;
mod signals;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod-tested");
const MEMBER: &str = "tiny-08b";

/// One member on two executors, as on two cards.
fn deployment() -> Deployment {
    Deployment::of(&[MEMBER]).devices(&["cpu:0", "cpu:1"])
}

/// A metric's value: the first line with this name and these labels.
fn metric(client: &Client, name: &str) -> Option<f64> {
    let reply = client.try_request("GET", "/metrics", &[], Vec::new()).ok()?;
    let line = reply.text().lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}
