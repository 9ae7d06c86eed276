//! What systemd is told, where it asks (`NOTIFY_SOCKET`, `man 3 sd_notify`): that the members serve, that the deployment
//! is being loaded again, that the process is about to end. Elsewhere nothing is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::supervisor::Roster;

/// Whether this process has said that its members serve: before that, the end of a reload must not say so.
static IS_UP: AtomicBool = AtomicBool::new(false);

/// Says `READY=1` once every required member serves, and at all times what is waited for, until the process drains.
pub(super) async fn when_ready(roster: watch::Receiver<Arc<Roster>>) {
    follow(roster, &IS_UP, tell).await;
}

async fn follow(mut roster: watch::Receiver<Arc<Roster>>, is_up: &AtomicBool, mut tell: impl FnMut(&[NotifyState])) {
    let mut said = String::new();
    loop {
        let (is_ready, status) = {
            let roster = roster.borrow_and_update();
            if roster.draining {
                return;
            }
            (roster.is_ready(), status(&roster))
        };
        if is_ready && !is_up.swap(true, Ordering::Relaxed) {
            tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
        } else if status != said {
            tell(&[NotifyState::Status(&status)]);
        }
        said = status;
        if roster.changed().await.is_err() {
            return;
        }
    }
}

fn status(roster: &Roster) -> String {
    let waiting = roster.members.iter().filter(|member| member.listing.required && !member.is_ready());
    let names: Vec<&str> = waiting.map(|member| member.listing.name.as_str()).collect();
    if names.is_empty() { "serving".to_owned() } else { format!("waiting for {}", names.join(", ")) }
}

/// Says that the deployment is being loaded again. [`reloaded`] must follow, whatever comes of it.
pub(super) fn reloading() {
    if let (true, Ok(now)) = (IS_UP.load(Ordering::Relaxed), NotifyState::monotonic_usec_now()) {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// Says that loading again is over, which systemd takes `READY=1` for. [`when_ready`] says what is waited for.
pub(super) fn reloaded() {
    tell(after_reload(&IS_UP));
}

fn after_reload(is_up: &AtomicBool) -> &'static [NotifyState<'static>] {
    if is_up.load(Ordering::Relaxed) { &[NotifyState::Ready] } else { &[] }
}

/// Says that what is under way is finished and nothing new is taken.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing what is under way")]);
}

fn tell(states: &[NotifyState]) {
    if states.is_empty() {
        return;
    }
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::supervisor::fakes::{Strings, patient_settings};
    use crate::supervisor::{Drain, Reload, Supervisor};

    /// A reload while the members are not loaded yet must not end the wait of who starts the process.
    #[actix::test]
    async fn a_reload_says_nothing_before_the_members_serve() {
        let strings = Strings::new();
        strings.puppet.failing_loads.store(1, Ordering::SeqCst);
        let seats = || vec![strings.seat("m")];
        let metrics = Arc::new(Metrics::new());
        let (supervisor, mut roster) = Supervisor::start_all(seats(), patient_settings(), metrics);
        roster.wait_for(|roster| roster.members[0].replicas[0].state.name() == "failed").await.unwrap();
        let (is_up, said) = (AtomicBool::new(false), std::cell::RefCell::new(Vec::new()));
        let lines = |states: &[NotifyState]| states.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let told = |states: &[NotifyState]| said.borrow_mut().push(lines(states));
        let following = follow(roster.clone(), &is_up, told);
        let acting = async {
            assert_eq!(lines(after_reload(&is_up)), "");
            let reload = Reload { seats: seats(), settings: patient_settings(), host_bytes: None };
            supervisor.send(reload).await.unwrap().unwrap();
            roster.wait_for(|roster| roster.is_ready()).await.unwrap();
            while !is_up.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            supervisor.send(Drain).await.unwrap();
        };
        futures_util::future::join(following, acting).await;
        assert_eq!(*said.borrow(), ["STATUS=waiting for m", "READY=1 STATUS=serving"]);
        assert_eq!(lines(after_reload(&is_up)), "READY=1");
    }
}
