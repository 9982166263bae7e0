//! SIGINT and SIGTERM.
//!
//! By default a signal removes the unfinished files and ends the process with 128 + its number. A
//! tool that has something to save calls [`finish_on_signal`] and then asks [`interrupted`]; a
//! second signal ends it at once all the same.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{Error, Result};

static RECEIVED: AtomicI32 = AtomicI32::new(0);
static FINISH_FIRST: AtomicBool = AtomicBool::new(false);

/// Starts the thread that waits for signals. Without it (no thread to be had) the default
/// disposition stays, which also ends the process.
pub(super) fn install() {
    // A file-size limit is an error of the write like a full disk, not the end of the process.
    // SAFETY: SIG_IGN is a valid disposition and runs no code of ours; no handler of this signal is
    // replaced, as none is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    let _ = std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let first = RECEIVED.swap(signal, Ordering::SeqCst) == 0;
            if !(first && FINISH_FIRST.load(Ordering::SeqCst)) {
                super::exit::leave(128 + signal);
            }
        }
    });
}

/// From now on the first signal is only noted, for [`interrupted`] to report.
pub fn finish_on_signal() {
    FINISH_FIRST.store(true, Ordering::SeqCst);
}

/// The error to end with, once a signal has come.
///
/// # Errors
/// [`Error::Interrupted`] after SIGINT or SIGTERM.
pub fn interrupted() -> Result<()> {
    match RECEIVED.load(Ordering::SeqCst) {
        0 => Ok(()),
        signal => Err(Error::Interrupted(signal)),
    }
}
