//! Progress for people: a bar on a terminal, a plain line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a plain line is written where stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Progress of one stage, on stderr only.
pub struct Progress {
    kind: Kind,
    what: String,
    total: Option<u64>,
    done: u64,
    started: Instant,
    last_line: Instant,
}

enum Kind {
    Silent,
    Bar(ProgressBar),
    Lines,
}

impl Progress {
    /// Progress over `total` units (unknown if `None`); `what` names the unit, as in "tokens".
    pub fn new(what: &str, total: Option<u64>, quiet: bool) -> Self {
        let kind = if quiet {
            Kind::Silent
        } else if std::io::stderr().is_terminal() {
            let bar = match total {
                Some(total) => ProgressBar::new(total).with_style(style(
                    "{bar:30} {human_pos}/{human_len} {prefix} {per_sec} eta {eta} {msg}",
                )),
                None => ProgressBar::new_spinner()
                    .with_style(style("{spinner} {human_pos} {prefix} {per_sec} {msg}")),
            };
            Kind::Bar(bar.with_prefix(what.to_owned()))
        } else {
            Kind::Lines
        };
        let now = Instant::now();
        Progress { kind, what: what.into(), total, done: 0, started: now, last_line: now }
    }

    /// Adds `units` done.
    pub fn add(&mut self, units: u64) {
        self.set(self.done + units, "");
    }

    /// Sets the units done so far and a word beside them, such as the loss.
    pub fn set(&mut self, done: u64, message: &str) {
        self.done = done;
        match &self.kind {
            Kind::Silent => {}
            Kind::Bar(bar) => {
                bar.set_position(done);
                if !message.is_empty() {
                    bar.set_message(message.to_owned());
                }
            }
            Kind::Lines => {
                if self.last_line.elapsed() >= LINE_EVERY {
                    self.last_line = Instant::now();
                    self.line(message);
                }
            }
        }
    }

    /// Says one line to people, above the bar where there is one.
    pub fn say(&self, line: &str) {
        match &self.kind {
            Kind::Silent => {}
            Kind::Bar(bar) => bar.println(line),
            Kind::Lines => eprintln!("{line}"),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Kind::Bar(bar) = &self.kind {
            bar.finish_and_clear();
        }
    }

    fn line(&self, message: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = self.done as f64 / seconds.max(1e-9);
        let left = match self.total {
            Some(total) if rate > 0.0 => {
                format!("/{total}, {:.0} s left", total.saturating_sub(self.done) as f64 / rate)
            }
            _ => String::new(),
        };
        let gap = if message.is_empty() { "" } else { ", " };
        eprintln!("{}{left} {}, {rate:.0} a second{gap}{message}", self.done, self.what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
