//! `genv top`: a live view of the lab in the terminal.
//!
//! Threads send events: keys, sizes, signals and publications. After each event the view, a function of the keys, and the
//! facts are drawn; nothing is drawn in between.

mod draw;
mod enforcer;
mod grid;
mod history;
mod once;
mod screen;
mod source;
mod tabs;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::panic;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use crossterm::event::{Event as Input, KeyEvent, KeyEventKind, read};
use genv_core::duration::parse_interval;
use genv_core::model::{Publication, local_time_zone, now_seconds};
use genv_core::proc::{own_uid, username};
use genv_core::terminal::has_cursor;
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use self::draw::Frame;
use self::enforcer::{Against, Enforcers};
use self::grid::Grid;
use self::history::History;
use self::screen::Screen;
use self::source::{Source, ended};
use self::tabs::Facts;
use self::view::{View, Wish};
use super::remote::HostFlags;
use crate::source_flags::SourceFlags;

const EXAMPLE: &str = "Example: watch the GPUs of all hosts
  genv top -H gpu[01-08]

Keys: Enter goes from a device to its holders and their processes, '/' filters, '?' lists all keys, 'q' quits.";

/// Watch devices, environments, users, processes and hosts, live in the terminal.
///
/// Without a terminal on stdout, as with --once, it prints the devices and the users once. It waits for the driver as 'genv
/// devices' does, and for other hosts as 'genv remote' does.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Top {
    /// Print the devices and the users once, as plain tables.
    #[arg(long)]
    once: bool,

    /// Time between two updates.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_interval)]
    interval: Duration,

    #[command(flatten)]
    sources: SourceFlags,

    #[command(flatten)]
    hosts: HostFlags,
}

/// What wakes the program.
enum Event {
    Key(KeyEvent),
    Resized,
    Published(Arc<Publication>),
    Signal(i32),
    /// A source of events has ended.
    Ended(anyhow::Error),
}

impl Top {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let source = Source::open(self.sources.options(), self.hosts)?;
        if self.once || !has_cursor(&io::stdout()) {
            return print_once(source);
        }
        watch(source, self.interval)
    }
}

fn print_once(source: Source) -> anyhow::Result<()> {
    let (hosts, history, zone) = (source.once()?, History::default(), local_time_zone());
    once::print(&Facts { hosts: &hosts, history: &history, own: &username(own_uid()), zone: &zone })
}

/// Shows the view until a key or a signal ends it.
fn watch(source: Source, interval: Duration) -> anyhow::Result<()> {
    let (sender, events) = channel();
    let awaited = source.awaited();
    let screen = Screen::enter().context("cannot use the terminal: try 'genv top --once'")?;
    let mut session = Session::new(screen, awaited);
    session.draw()?;
    leave_on_panic(sender.clone());
    send_signals(sender.clone())?;
    send_keys(sender.clone())?;
    source.start(interval, move |publication| {
        let event = publication.map_or_else(|_| Event::Ended(ended()), Event::Published);
        let is_last = matches!(event, Event::Ended(_));
        sender.send(event).is_ok() && !is_last
    })?;
    let signal = session.run(&events)?;
    drop(session);
    if let Some(signal) = signal {
        emulate_default_handler(signal).context("cannot end by the signal")?;
    }
    Ok(())
}

/// The screen and all that is shown on it.
struct Session {
    screen: Screen,
    view: View,
    /// The rows on the screen.
    shown: Grid,
    publication: Arc<Publication>,
    received_seconds: Option<f64>,
    awaited: String,
    history: History,
    enforcers: Enforcers,
    against: Against,
}

impl Session {
    fn new(screen: Screen, awaited: String) -> Self {
        Self {
            screen,
            view: View::default(),
            shown: Grid { columns: Vec::new(), rows: Vec::new() },
            publication: Arc::default(),
            received_seconds: None,
            awaited,
            history: History::default(),
            enforcers: Enforcers::new(),
            against: Against::default(),
        }
    }

    /// Handles events until the end. Returns the signal that caused it.
    fn run(&mut self, events: &Receiver<Event>) -> anyhow::Result<Option<i32>> {
        loop {
            match events.recv().map_err(|_| ended())? {
                Event::Key(key) => match self.view.press(key, &self.shown) {
                    Wish::Go => {}
                    Wish::Quit => return Ok(None),
                    // All processes of the job stop; this one by the event of the signal.
                    Wish::Suspend => kill_current_process_group(Signal::TSTP).context("cannot suspend")?,
                    Wish::Redraw => self.screen.clear()?,
                },
                Event::Resized => {}
                Event::Published(publication) => self.receive(publication),
                Event::Signal(SIGTSTP) => self.suspend()?,
                Event::Signal(signal) => return Ok(Some(signal)),
                Event::Ended(error) => return Err(error),
            }
            self.draw()?;
        }
    }

    fn receive(&mut self, publication: Arc<Publication>) {
        let now_seconds = now_seconds();
        self.history.record(&publication.hosts);
        self.against = self.enforcers.refresh(now_seconds, &local_time_zone());
        self.received_seconds = Some(now_seconds);
        self.publication = publication;
    }

    fn suspend(&mut self) -> anyhow::Result<()> {
        screen::leave();
        emulate_default_handler(SIGTSTP).context("cannot suspend")?;
        Ok(self.screen.enter_again()?)
    }

    fn draw(&mut self) -> io::Result<()> {
        let zone = local_time_zone();
        let facts = Facts {
            hosts: &self.publication.hosts,
            history: &self.history,
            own: self.enforcers.user.name(),
            zone: &zone,
        };
        let frame =
            Frame { facts, against: &self.against, received_seconds: self.received_seconds, awaited: &self.awaited };
        let grid = facts.grid(self.view.place.tab);
        let (view, shown) = (&mut self.view, &mut self.shown);
        self.screen.draw(|buffer| *shown = draw::draw(buffer, view, &frame, grid))
    }
}

/// Leaves the screen before the message of a panic, and then ends the program, whichever thread it was.
fn leave_on_panic(sender: Sender<Event>) {
    let earlier = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        screen::leave();
        earlier(panicked);
        // The receiver may have ended.
        let _ = sender.send(Event::Ended(ended()));
    }));
}

fn send_signals(sender: Sender<Event>) -> anyhow::Result<()> {
    let caught = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP]);
    let mut caught = caught.context("cannot wait for signals")?;
    let send = move || caught.forever().try_for_each(|signal| sender.send(Event::Signal(signal)).map_err(drop));
    thread::Builder::new().name("signals".to_owned()).spawn(send).context("cannot start a thread")?;
    Ok(())
}

fn send_keys(sender: Sender<Event>) -> anyhow::Result<()> {
    let send = move || {
        loop {
            let event = match read() {
                Ok(Input::Key(key)) if key.kind == KeyEventKind::Release => continue,
                Ok(Input::Key(key)) => Event::Key(key),
                Ok(Input::Resize(..)) => Event::Resized,
                Ok(_) => continue,
                Err(error) => {
                    Event::Ended(anyhow::Error::new(error).context("cannot read keys: try 'genv top --once'"))
                }
            };
            let is_last = matches!(event, Event::Ended(_));
            if sender.send(event).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".to_owned()).spawn(send).context("cannot start a thread")?;
    Ok(())
}
