//! The exclusive lock of an image, which keeps others from writing while this process serves it.
//!
//! librbd takes the lock from a client that gives it, breaks that of a client that has not been heard of for 30 s
//! (osd_client_watch_timeout), and is refused by one that keeps it, as we do. The lock of a killed process would therefore
//! last half a minute. The caller may know that a former holder is dead, because it was this host's last server of the image:
//! then its lock is broken at once. Breaking a lock puts its client on the cluster's blocklist first, so what it has under way
//! is not written later.

use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

use crate::native::OpenImage;
use crate::{Error, ImageSpec};

/// How long another client's lock is waited for: until a dead client is known to be dead, and a little more.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// The time between two attempts.
const AGAIN: Duration = Duration::from_millis(500);

/// Takes the lock; `former` is the address of a holder that is known to be dead. Tells `waits` once if it may have to wait. Returns our own
/// address.
pub(crate) fn take(
    image: &OpenImage,
    spec: &ImageSpec,
    former: Option<&str>,
    mut waits: impl FnMut(&str),
) -> Result<String, Error> {
    let failed = |doing| move |why| Error::Failed { doing, spec: spec.clone(), why };
    let until = Instant::now() + PATIENCE;
    let mut told = false;
    loop {
        let holder = image.holder().map_err(failed("cannot ask who has the lock of"))?;
        if let Some(dead) =
            holder.as_ref().filter(|holder| former.is_some() && holder.to_str().ok() == former)
        {
            tracing::info!("{spec}: the lock of the last server, {}, is broken", text(dead));
            match image.break_lock(dead) {
                // Somebody else has been faster.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(failed("cannot break the lock of"))?,
            }
        }
        let holder = holder.filter(|holder| holder.to_str().ok() != former);
        if let Some(other) = holder.as_ref().filter(|_| !std::mem::replace(&mut told, true)) {
            waits(&text(other));
        }
        // Asks another holder for it, which may take as long as the cluster needs to find out that that client is dead.
        match image.lock() {
            Ok(()) => break,
            Err(e) if is_refused(&e) => {}
            Err(e) => return Err(failed("cannot lock")(e)),
        }
        let holder = holder.as_ref().map(text).unwrap_or_else(|| "an unknown address".to_owned());
        if Instant::now() >= until {
            return Err(Error::Locked { spec: spec.clone(), holder });
        }
        std::thread::sleep(AGAIN);
    }
    let own = image.holder().map_err(failed("cannot ask who has the lock of"))?;
    // If somebody has broken it meanwhile, that holder is not this process.
    let has = image.has_lock().map_err(failed("cannot ask who has the lock of"))?;
    Ok(own.as_ref().filter(|_| has).map(text).unwrap_or_default())
}

/// Whether the holder keeps its lock.
fn is_refused(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock
    )
}

fn text(holder: &CString) -> String {
    holder.to_string_lossy().into_owned()
}
