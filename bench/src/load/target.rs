//! The server, as its callers see it.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use reqwest::Client;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::Value;

use super::scrape::Outcome;
use super::{Load, SCRAPE_EVERY, Scrape};

/// Between two scrapes that wait for the last requests to be counted.
const POLL: Duration = Duration::from_millis(50);

pub(super) struct Target {
    client: Client,
    decide: String,
    metrics: String,
    /// The header's value.
    key: Option<String>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// A status, with the stable code where it is a refusal; or what happened instead.
    pub(super) status: String,
    /// As the server should have counted it; unknown where it may never have had the request.
    pub(super) outcome: Option<Outcome>,
    pub(super) input_tokens: u64,
}

impl Target {
    pub(super) fn new(load: &Load) -> Result<Self> {
        let builder = Client::builder().no_proxy().tcp_nodelay(true).timeout(load.timeout);
        let client = builder.pool_max_idle_per_host(load.connections).build()?;
        let url = load.url.trim_end_matches('/');
        let metrics = load.metrics_url.clone().unwrap_or_else(|| format!("{url}/metrics"));
        let key = load.key.as_ref().map(|key| format!("Bearer {key}"));
        Ok(Target { client, decide: format!("{url}/v1/systemone"), metrics, key })
    }

    /// Sends a request and reads its whole reply.
    pub(super) async fn ask(self: Arc<Self>, body: String) -> Reply {
        let mut request = self.client.post(&self.decide).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        let received = async {
            let response = request.send().await?;
            Ok((response.status().as_u16(), response.bytes().await?))
        };
        match received.await {
            Ok((status, body)) => Reply::received(status, &body),
            Err(error) => Reply::lost(&error),
        }
    }

    pub(super) async fn scrape(self: Arc<Self>) -> Result<Scrape> {
        let response = self.client.get(&self.metrics).send().await;
        let response = response.and_then(reqwest::Response::error_for_status).context("the server's metrics")?;
        Ok(Scrape::read(&response.text().await.context("the server's metrics")?))
    }

    /// Tells `watcher` how much memory the server has, until it is aborted. A scrape that fails is left out.
    pub(super) async fn watch(self: Arc<Self>, start: Instant, watcher: Sender<(Duration, u64)>) {
        let mut ticks = tokio::time::interval(SCRAPE_EVERY);
        loop {
            ticks.tick().await;
            if let Ok(Scrape { resident_bytes: Some(bytes), .. }) = Arc::clone(&self).scrape().await {
                let _ = watcher.send((start.elapsed(), bytes));
            }
        }
    }

    /// The counters once nothing is under way any more.
    pub(super) async fn settled(self: Arc<Self>, limit: Duration) -> Result<Scrape> {
        let deadline = Instant::now() + limit;
        loop {
            let scrape = Arc::clone(&self).scrape().await?;
            if scrape.inflight == 0 {
                return Ok(scrape);
            }
            if Instant::now() > deadline {
                bail!("synod_inflight: expected 0 once every request has ended, found {}", scrape.inflight);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Reply {
    fn received(status: u16, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let code = body["error"]["code"].as_str().unwrap_or_default();
        Reply {
            status: format!("{status} {code}").trim_end().to_owned(),
            outcome: Some(Outcome::of(status, code)),
            input_tokens: body["usage"]["input_tokens"].as_u64().unwrap_or(0),
        }
    }

    fn lost(error: &reqwest::Error) -> Self {
        let status = if error.is_timeout() {
            "timeout"
        } else if error.is_connect() {
            "no connection"
        } else {
            "connection lost"
        };
        Reply { status: status.to_owned(), outcome: None, input_tokens: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_as_the_server_counts_them() {
        let check = |status, body: &str, expected: (&str, Outcome, u64)| {
            let reply = Reply::received(status, body.as_bytes());
            assert_eq!((reply.status.as_str(), reply.outcome.unwrap(), reply.input_tokens), expected);
        };
        check(200, r#"{"answers":{},"usage":{"input_tokens":50}}"#, ("200", Outcome::Answered, 50));
        check(429, r#"{"error":{"code":"key_rate","message":"m"}}"#, ("429 key_rate", Outcome::Rejected, 0));
        check(422, r#"{"detail":[]}"#, ("422", Outcome::Rejected, 0));
        check(500, r#"{"detail":"inference failed"}"#, ("500", Outcome::Failed, 0));
        check(504, r#"{"error":{"code":"deadline"}}"#, ("504 deadline", Outcome::Failed, 0));
        check(504, r#"{"error":{"code":"body_timeout"}}"#, ("504 body_timeout", Outcome::Rejected, 0));
        check(400, r#"{"error":{"code":"body_incomplete"}}"#, ("400 body_incomplete", Outcome::Cancelled, 0));
        check(502, "<html>", ("502", Outcome::Failed, 0));
    }
}
