//! Which scheduler the open requests are with.

use llmrt_link::PeerState;

/// The scheduler that holds the open requests, as far as it is known.
#[derive(Default)]
pub struct Succession(Option<u64>);

impl Succession {
    /// Why the requests of the scheduler before `now` are lost, told once for each scheduler: requests that a
    /// successor has taken meanwhile are not.
    pub fn lost<'a>(&mut self, now: &'a PeerState) -> Option<&'a str> {
        match now {
            PeerState::Ready { incarnation, .. } => {
                let before = self.0.replace(*incarnation);
                before
                    .is_some_and(|before| before != *incarnation)
                    .then_some("the scheduler was replaced")
            }
            PeerState::Dead { reason } => {
                self.0 = None;
                Some(reason)
            }
            PeerState::Connecting => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(incarnation: u64) -> PeerState {
        PeerState::Ready {
            incarnation,
            info: Default::default(),
        }
    }

    #[test]
    fn each_schedulers_requests_are_lost_once() {
        let dead = PeerState::Dead {
            reason: "silent".into(),
        };
        let mut succession = Succession::default();
        for (now, lost) in [
            (PeerState::Connecting, None),
            (ready(1), None),
            (ready(1), None),
            (ready(2), Some("the scheduler was replaced")),
            (dead, Some("silent")),
            (ready(3), None),
            (PeerState::Connecting, None),
            (ready(4), Some("the scheduler was replaced")),
        ] {
            assert_eq!(succession.lost(&now), lost, "{now:?}");
        }
    }
}
