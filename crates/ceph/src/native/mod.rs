//! The objects of librados and librbd, each with its one owner. The only unsafe code of this crate.
//!
//! The handles of both libraries may be used by several threads at once. A completion belongs to librbd from its submission
//! until its callback; meanwhile nobody here touches the memory that it uses (see `request`). Except for requests, every call
//! here may block for as long as the cluster does not answer.

mod cluster;
mod image;
mod library;
mod request;

use std::ffi::{CString, c_int};
use std::io;

pub(crate) use cluster::{Cluster, Pool};
pub(crate) use image::{Diff, Facts, OpenImage};
use request::Request;

use crate::Error;

/// The error of a call that returned a negative errno.
fn failure(result: impl Into<i64>) -> io::Error {
    let errno = result.into().saturating_neg();
    io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(i32::MAX))
}

fn done(result: c_int) -> io::Result<()> {
    if result < 0 { Err(failure(result)) } else { Ok(()) }
}

/// A C string; `what` names it in the error.
pub(crate) fn text(what: &'static str, text: impl Into<Vec<u8>>) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Text(what))
}
