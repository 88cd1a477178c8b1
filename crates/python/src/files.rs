//! Atomic writing of files: a file appears under its name only when complete.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// Writes a file atomically: it appears under its name only when complete and on the disk.
pub(crate) fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut aside = OsString::from(path);
    aside.push(format!(".{}-{}.part", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(contents)?;
        file.sync_all()?;
        std::fs::rename(&aside, path)
    })();
    written.inspect_err(|_| {
        // The part that was written is useless; if it does not even exist, that is no second error.
        let _ = std::fs::remove_file(&aside);
    })
}

/// Converts an I/O error to the exception that Python itself raises for it (`OSError` and its subclasses).
pub(crate) fn failed(path: &str, error: &io::Error) -> PyErr {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => {
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            PyOSError::new_err((number, text, path.to_owned()))
        }
        None => PyOSError::new_err(format!("{path}: {text}")),
    }
}
