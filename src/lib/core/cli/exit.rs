//! The end of a process, whoever brings it: the tool's outcome or a signal.

use std::io::Write;

use crate::format::atomic::remove_temporaries;

/// Ends the process now: flushes the standard streams, removes unfinished files, skips destructors.
pub(super) fn leave(code: i32) -> ! {
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    remove_temporaries();
    // SAFETY: _exit takes any status and never returns. It frees nothing, so no other thread can
    // meet freed memory; what is unwritten was flushed above.
    unsafe { libc::_exit(code) }
}
