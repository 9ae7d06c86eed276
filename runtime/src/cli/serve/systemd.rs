//! What systemd is told, where it asks (`NOTIFY_SOCKET`, `man 3 sd_notify`): that the members serve, that the deployment
//! is being loaded again, that the process is about to end. Elsewhere nothing is told.

use std::sync::Arc;

use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::supervisor::Roster;

/// Says `READY=1` once every required member serves, and until then what is waited for.
pub(super) async fn when_ready(mut roster: watch::Receiver<Arc<Roster>>) {
    loop {
        let status = {
            let roster = roster.borrow_and_update();
            if roster.draining {
                return;
            }
            if roster.is_ready() {
                break;
            }
            let waiting = roster.members.iter().filter(|member| member.listing.required && !member.is_ready());
            let names: Vec<&str> = waiting.map(|member| member.listing.name.as_str()).collect();
            format!("loading {}", names.join(", "))
        };
        tell(&[NotifyState::Status(&status)]);
        if roster.changed().await.is_err() {
            return;
        }
    }
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Says that the deployment is being loaded again. [`reloaded`] must follow, whatever comes of it.
pub(super) fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// Says that loading again is over.
pub(super) fn reloaded() {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Says that what is under way is finished and nothing new is taken.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing what is under way")]);
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be told");
    }
}
