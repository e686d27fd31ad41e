//! The events of a view: keys, resizes, ticks and the signal to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout_at};

use crate::error::Error;

/// The number of events that are queued; further ones stay in the terminal.
const WAITING_MAX: usize = 64;
/// How long no key may come before a screen rests: longer than the pause between the repeats of a key that is held down.
const REST: Duration = Duration::from_millis(300);
/// How soon the listening thread notices that the view is gone.
const POLL_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Key(KeyEvent),
    Resized,
    /// Time to refresh the data.
    Tick,
    /// Ctrl-C, a signal, or the terminal is gone.
    Stop,
}

#[derive(Debug)]
pub struct Events {
    happened: mpsc::Receiver<Event>,
    ticks: Option<Interval>,
    signals: Vec<Signal>,
    over: Arc<AtomicBool>,
}

impl Events {
    /// Events of the terminal and of signals, and a tick every `every`. Create it after [`super::Screen`].
    pub fn of_terminal(every: Duration) -> Result<Self, Error> {
        let no_signal = |error| Error::Internal(format!("signals cannot be handled: {error}"));
        let kinds =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
        let signals = kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>().map_err(no_signal)?;
        let (send, happened) = mpsc::channel(WAITING_MAX);
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let listening =
            std::thread::Builder::new().name("terminal".to_owned()).spawn(move || listen(&send, &until));
        listening.map_err(|error| Error::Internal(format!("no thread can be started: {error}")))?;
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { happened, ticks: Some(ticks), signals, over })
    }

    /// Events from a test. When the sender is dropped, the next event is [`Event::Stop`].
    pub fn from(happened: mpsc::Receiver<Event>) -> Self {
        Self { happened, ticks: None, signals: Vec::new(), over: Arc::new(AtomicBool::new(false)) }
    }

    /// The next event. A signal goes before all other events.
    pub async fn next(&mut self) -> Event {
        let Self { happened, ticks, signals, over: _ } = self;
        let tick = async {
            match ticks {
                Some(ticks) => drop(ticks.tick().await),
                None => std::future::pending().await,
            }
        };
        let signal = std::future::poll_fn(|context| {
            let received = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if received { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        tokio::select! {
            biased;
            () = signal => Event::Stop,
            event = happened.recv() => event.unwrap_or(Event::Stop),
            () = tick => Event::Tick,
        }
    }

    /// Drops keys until none has come for a moment, so that a key for the last screen does nothing on this one. Returns `true` at
    /// [`Event::Stop`].
    pub async fn rest(&mut self) -> bool {
        let mut end = Instant::now() + REST;
        loop {
            match timeout_at(end, self.next()).await {
                Err(_) => return false,
                Ok(Event::Stop) => return true,
                Ok(Event::Key(_)) => end = Instant::now() + REST,
                Ok(Event::Resized | Event::Tick) => {}
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

/// Reads the terminal until the view or the terminal is gone.
fn listen(send: &mpsc::Sender<Event>, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        let read = match event::poll(POLL_EVERY) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let Ok(read) = read else { return };
        if let Some(event) = meaning(read)
            && send.blocking_send(event).is_err()
        {
            return;
        }
    }
}

fn meaning(read: event::Event) -> Option<Event> {
    match read {
        event::Event::Key(key) if key.kind == KeyEventKind::Release => None,
        event::Event::Key(key)
            if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) =>
        {
            Some(Event::Stop)
        }
        event::Event::Key(key) => Some(Event::Key(key)),
        event::Event::Resize(..) => Some(Event::Resized),
        event::Event::FocusGained
        | event::Event::FocusLost
        | event::Event::Mouse(_)
        | event::Event::Paste(_) => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(code: char, modifiers: KeyModifiers) -> event::Event {
        event::Event::Key(KeyEvent::new(KeyCode::Char(code), modifiers))
    }

    #[test]
    fn control_c_stops_and_c_is_a_letter() {
        assert_eq!(meaning(key('c', KeyModifiers::CONTROL)), Some(Event::Stop));
        assert!(matches!(meaning(key('c', KeyModifiers::NONE)), Some(Event::Key(_))));
        assert_eq!(meaning(event::Event::Paste("approve".to_owned())), None);
        assert_eq!(meaning(event::Event::Resize(1, 1)), Some(Event::Resized));
    }

    #[tokio::test]
    async fn events_come_in_order_and_the_end_of_them_is_a_stop() {
        let (send, happened) = mpsc::channel(2);
        let mut events = Events::from(happened);
        send.send(Event::Tick).await.unwrap();
        send.send(Event::Resized).await.unwrap();
        drop(send);
        let mut received = Vec::new();
        for _ in 0..3 {
            received.push(events.next().await);
        }
        assert_eq!(received, [Event::Tick, Event::Resized, Event::Stop]);
    }
}
