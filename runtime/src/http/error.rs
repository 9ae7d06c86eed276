//! Why a request is refused, and the one table that says with which status and code.

use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};

use crate::admission::{QueueFull, Refused};
use crate::metrics::Outcome;
use crate::replay::{Unanswerable, Written};
use crate::wire::response::{write_details, write_error};

/// What a client is asked to wait for a server or a member that may be back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Every way in which this server does not answer. The message may be shown to the client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    #[error("a key is required: authorization: Bearer <key>")]
    MissingKey,
    #[error("the key is not known here")]
    UnknownKey,
    /// More requests of the caller's than its key allows.
    #[error("the key allows fewer requests per second; try again")]
    KeyRate { retry_after: Duration },
    #[error("no such route; see POST /v1/systemone, POST /v1/decisions, GET /v1/models")]
    UnknownRoute,
    /// `allow` is the method that the route has.
    #[error("this route takes {allow} only")]
    Method { allow: &'static str },
    #[error("the content type must be application/json")]
    ContentType,
    /// `content-encoding` names something else than the encodings that are read.
    #[error("the content encoding must be gzip, zstd or identity")]
    UnknownEncoding,
    /// The body ended before its announced length, or was not framed as HTTP.
    #[error("the body was not received whole")]
    BodyIncomplete,
    #[error("the body was not received in time")]
    BodyTimeout,
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The metrics could not be written.
    #[error("the metrics could not be written")]
    Metrics { reason: String },
    /// The deployment that runs goes on.
    #[error("nothing was changed: {reason}")]
    Reload { reason: String },
}

/// One line of the table.
struct Row {
    status: StatusCode,
    /// Stable; in `error.code` and in `synod_rejected_total{reason}`.
    code: &'static str,
    outcome: Outcome,
}

impl Problem {
    fn row(&self) -> Row {
        use Outcome::{Cancelled, Failed, Rejected};
        let (status, code, outcome) = match self {
            Problem::UnknownEncoding => (StatusCode::BAD_REQUEST, "content_encoding", Rejected),
            Problem::BodyIncomplete => (StatusCode::BAD_REQUEST, "body_incomplete", Cancelled),
            Problem::MissingKey => (StatusCode::UNAUTHORIZED, "missing_key", Rejected),
            Problem::UnknownKey => (StatusCode::UNAUTHORIZED, "unknown_key", Rejected),
            Problem::KeyRate { .. } => (StatusCode::TOO_MANY_REQUESTS, "key_rate", Rejected),
            Problem::UnknownRoute => (StatusCode::NOT_FOUND, "unknown_route", Rejected),
            Problem::Method { .. } => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", Rejected),
            Problem::BodyTimeout => (StatusCode::GATEWAY_TIMEOUT, "body_timeout", Rejected),
            Problem::ContentType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", Rejected),
            Problem::Reload { .. } => (StatusCode::CONFLICT, "reload", Rejected),
            Problem::Metrics { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "metrics", Failed),
            Problem::Refused(refused) => match refused {
                Refused::Encoding { .. } => (StatusCode::BAD_REQUEST, "content_encoding", Rejected),
                Refused::Json(_) => (StatusCode::BAD_REQUEST, "invalid_json", Rejected),
                Refused::ModelNotAllowed { .. } => (StatusCode::FORBIDDEN, "model_not_allowed", Rejected),
                Refused::UnknownModel { .. } => (StatusCode::NOT_FOUND, "unknown_model", Rejected),
                Refused::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", Rejected),
                Refused::TooLong { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_long", Rejected),
                Refused::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid", Rejected),
                Refused::QueueFull { full: QueueFull::Requests, .. } => {
                    (StatusCode::TOO_MANY_REQUESTS, "queue_requests", Rejected)
                }
                Refused::QueueFull { full: QueueFull::Tokens, .. } => {
                    (StatusCode::TOO_MANY_REQUESTS, "queue_tokens", Rejected)
                }
                Refused::QueueFull { full: QueueFull::Bytes, .. } => {
                    (StatusCode::TOO_MANY_REQUESTS, "queue_bytes", Rejected)
                }
                Refused::Internal { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "internal", Failed),
                Refused::NotReady { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not_ready", Rejected),
                Refused::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining", Rejected),
                Refused::GivenUp => (StatusCode::SERVICE_UNAVAILABLE, "draining", Failed),
                Refused::Deadline => (StatusCode::GATEWAY_TIMEOUT, "deadline", Failed),
            },
        };
        Row { status, code, outcome }
    }

    /// Its stable code.
    pub fn code(&self) -> &'static str {
        self.row().code
    }

    /// How a decision request that ended with it is counted.
    pub fn outcome(&self) -> Outcome {
        self.row().outcome
    }

    /// What the log says and the client does not read. Never text of a request.
    pub fn log_reason(&self) -> Option<&str> {
        match self {
            Problem::Refused(Refused::Internal { reason }) | Problem::Metrics { reason } => Some(reason),
            _ => None,
        }
    }

    /// The response's JSON, as the SDK reads it.
    pub fn body(&self) -> String {
        match self {
            Problem::Refused(Refused::Invalid(details)) => write_details(details),
            Problem::Refused(Refused::Internal { .. }) => r#"{"detail":"inference failed"}"#.to_owned(),
            _ => write_error(self.code(), &self.to_string()),
        }
    }

    /// When to come again.
    fn retry_after(&self) -> Duration {
        match self {
            Problem::KeyRate { retry_after } | Problem::Refused(Refused::QueueFull { retry_after, .. }) => *retry_after,
            _ => RETRY_AFTER,
        }
    }

    fn add_headers(&self, response: &mut HttpResponseBuilder) {
        match self.row().status {
            StatusCode::UNAUTHORIZED => {
                response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let milliseconds = self.retry_after().as_millis();
                response.insert_header((header::RETRY_AFTER, milliseconds.div_ceil(1000).to_string()));
                response.insert_header(("retry-after-ms", milliseconds.to_string()));
            }
            _ => {}
        }
        if let Problem::Method { allow } = self {
            response.insert_header((header::ALLOW, *allow));
        }
    }
}

/// The status and the body of a recorded request that is refused.
pub fn written(unanswerable: Unanswerable) -> Written {
    let problem = Problem::Refused(match unanswerable {
        Unanswerable::Json(error) => error.into(),
        Unanswerable::Refused(refusal) => refusal.into(),
    });
    (problem.status_code().as_u16(), problem.body())
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.row().status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        self.add_headers(&mut response);
        response.content_type("application/json").body(self.body())
    }
}
