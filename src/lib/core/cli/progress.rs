//! Progress for people, on stderr: a line now and then, or on a terminal a bar with the same words.
//!
//! `step 227/1000  loss 2.015  15.1 steps/s  7,730 tokens/s  51 s left`. Rates and the time that is
//! left are those of the last half minute, so that a slow start or a pause is soon forgotten.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::units;

/// How often a plain line is written where stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// How often the words beside a bar are made anew.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// What rates are measured over.
const WINDOW: Duration = Duration::from_secs(30);

/// How far apart the points of the window lie.
const POINT_EVERY: Duration = Duration::from_millis(500);

/// Progress of one stage.
pub struct Progress {
    kind: Kind,
    /// The unit in the plural.
    what: String,
    total: Option<u64>,
    done: u64,
    /// A second count, of which only the rate is shown: its unit in the plural, and how many.
    also: Option<(&'static str, u64)>,
    /// Times of the window with both counts, the oldest first; never empty.
    window: VecDeque<(Instant, u64, u64)>,
    shown: Instant,
}

enum Kind {
    Silent,
    Bar(ProgressBar),
    Lines,
}

impl Progress {
    /// Progress over `total` units (unknown if `None`); `what` names the unit in the plural, as in
    /// "steps". "bytes" are shown as sizes.
    pub fn new(what: &str, total: Option<u64>, quiet: bool) -> Self {
        let kind = if quiet {
            Kind::Silent
        } else if std::io::stderr().is_terminal() {
            let (bar, template) = match total {
                Some(total) => (ProgressBar::new(total), "[{bar:24}] {msg}"),
                None => (ProgressBar::new_spinner(), "{spinner} {msg}"),
            };
            let style = ProgressStyle::with_template(template);
            Kind::Bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
        } else {
            Kind::Lines
        };
        let now = Instant::now();
        let window = VecDeque::from([(now, 0, 0)]);
        Progress { kind, what: what.into(), total, done: 0, also: None, window, shown: now }
    }

    /// Says that `done` units were done before, and `also` of what [`Progress::also`] counts, so
    /// that rates are those of what is done from now on.
    pub fn begin_at(&mut self, done: u64, also: u64) {
        self.done = done;
        self.window = VecDeque::from([(Instant::now(), done, also)]);
    }

    /// Sets a second count, such as tokens, whose rate is shown beside that of the units.
    pub fn also(&mut self, what: &'static str, done: u64) {
        self.also = Some((what, done));
    }

    /// Adds `units` done.
    pub fn add(&mut self, units: u64) {
        self.set(self.done + units, "");
    }

    /// Sets the units done so far and words beside them, such as `loss 2.015`.
    pub fn set(&mut self, done: u64, message: &str) {
        self.done = done;
        let every = match &self.kind {
            Kind::Silent => return,
            Kind::Bar(_) => BAR_EVERY,
            Kind::Lines => LINE_EVERY,
        };
        let now = Instant::now();
        self.remember(now);
        if now - self.shown < every {
            return;
        }
        self.shown = now;
        let words = self.words(now, message);
        match &self.kind {
            Kind::Bar(bar) => {
                bar.set_message(words);
                bar.set_position(done);
            }
            _ => eprintln!("{words}"),
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

    /// Keeps the counts of now, and lets go of what the window no longer needs.
    fn remember(&mut self, now: Instant) {
        let last = self.window.back().map_or(now, |point| point.0);
        if now - last >= POINT_EVERY {
            self.window.push_back((now, self.done, self.also.map_or(0, |(_, n)| n)));
        }
        while self.window.get(1).is_some_and(|point| now - point.0 > WINDOW) {
            self.window.pop_front();
        }
    }

    fn words(&self, now: Instant, message: &str) -> String {
        let (since, done, also) = self.window.front().copied().unwrap_or((now, 0, 0));
        let seconds = (now - since).as_secs_f64();
        let rate = |count: u64, before: u64| count.saturating_sub(before) as f64 / seconds;
        let units = rate(self.done, done);
        let sizes = self.what == "bytes";
        let count = |n: u64| match n {
            _ if sizes => units::bytes(n as f64),
            10_000.. => units::grouped(n),
            _ => n.to_string(),
        };
        let one = self.what.strip_suffix('s').unwrap_or(&self.what);
        let one = if sizes { "read" } else { one };
        let mut words = vec![match self.total {
            Some(total) => format!("{one} {}/{}", count(self.done), count(total)),
            None => format!("{one} {}", count(self.done)),
        }];
        if !message.is_empty() {
            words.push(message.to_owned());
        }
        if units.is_finite() && units > 0.0 {
            words.push(match sizes {
                true => format!("{}/s", units::bytes(units)),
                false => format!("{} {}/s", units::significant(units), self.what),
            });
            if let Some((what, n)) = self.also {
                words.push(format!("{} {what}/s", units::significant(rate(n, also))));
            }
            if let Some(total) = self.total {
                let left = total.saturating_sub(self.done) as f64 / units;
                words.push(format!("{} left", units::remaining(left)));
            }
        }
        words.join("  ")
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stage whose window began `ago` at these counts.
    fn stage(what: &str, total: Option<u64>, ago: Duration, before: (u64, u64)) -> Progress {
        let mut progress = Progress::new(what, total, true);
        let start = Instant::now().checked_sub(ago).unwrap();
        progress.window = VecDeque::from([(start, before.0, before.1)]);
        progress
    }

    #[test]
    fn a_line_reads_count_words_rates_and_the_time_left() {
        let ago = Duration::from_secs(10);
        let mut progress = stage("steps", Some(1000), ago, (76, 38_912));
        progress.done = 227;
        progress.also = Some(("tokens", 38_912 + 77_300));
        let now = progress.window[0].0 + ago;
        let words = progress.words(now, "loss 2.015");
        let want = "step 227/1000  loss 2.015  15.1 steps/s  7,730 tokens/s  52 s left";
        assert_eq!(words, want);
    }

    #[test]
    fn sizes_and_unknown_totals_have_words_of_their_own() {
        let ago = Duration::from_secs(4);
        let mut progress = stage("bytes", Some(96_000_000), ago, (0, 0));
        progress.done = 12_300_000;
        let now = progress.window[0].0 + ago;
        assert_eq!(progress.words(now, ""), "read 12.3 MB/96.0 MB  3.08 MB/s  28 s left");
        let mut progress = stage("samples", None, ago, (0, 0));
        assert_eq!(progress.words(now, ""), "sample 0");
        progress.done = 12_345;
        let now = progress.window[0].0 + ago;
        assert_eq!(progress.words(now, ""), "sample 12,345  3,086 samples/s");
    }

    #[test]
    fn rates_are_those_of_the_window_and_not_of_the_whole_run() {
        let mut progress = stage("steps", Some(1000), Duration::from_secs(100), (0, 0));
        let start = progress.window[0].0;
        for second in 0..100u64 {
            // 1 step a second for a minute, then 5.
            progress.done = second.min(60) + 5 * second.saturating_sub(60);
            progress.remember(start + Duration::from_secs(second));
        }
        let words = progress.words(start + Duration::from_secs(99), "");
        assert!(words.contains("  5.00 steps/s  "), "{words}");
        assert!(progress.window.len() < 70);
    }

    #[test]
    fn what_was_done_before_does_not_count_for_the_rate() {
        let mut progress = Progress::new("steps", Some(1000), true);
        progress.begin_at(500, 0);
        progress.done = 510;
        let words = progress.words(progress.window[0].0 + Duration::from_secs(10), "");
        assert_eq!(words, "step 510/1000  1.00 steps/s  490 s left".replace("490 s", "9 min"));
    }
}
