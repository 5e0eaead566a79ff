//! An image that this process has for itself: its requests, its size, its lock and its end.
//!
//! Requests are librbd's own asynchronous ones. Calls that wait for the cluster (sizes, allocation, the lock) are made one
//! after another by the image's thread, which also sees each change of the image, and looks at the lock every [`LOOK_EVERY`].
//!
//! A lock is lost to a client that breaks it. From then on every request fails, even one that the cluster would carry out:
//! somebody else may be writing. Only opening the image again ends this.

use std::io;
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::answer::answer;
use crate::error::Error;
use crate::identity::Identity;
use crate::native::{Diff, Facts, OpenImage};
use crate::spec::ImageSpec;

/// How often the lock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long the lock must be missing: after a break of the network librbd takes it anew.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long the end of an image may take.
const END: Duration = Duration::from_secs(5);
/// How long a change of the size may take. The image's thread goes on afterwards.
const RESIZE: Duration = Duration::from_secs(60);
/// The most bytes whose allocation is asked for at a time, if each object must be asked.
const ASKED_BYTES: u64 = 4 << 30;
/// The same if a map tells which objects exist.
const MAPPED_BYTES: u64 = 1 << 40;

/// ESHUTDOWN: the cluster refuses this client for good.
const FENCED: i32 = 108;

/// A part of an image in which something is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

type Job = Box<dyn FnOnce(&OpenImage) + Send>;

enum Task {
    /// The image may have changed.
    Look,
    Do(Job),
    /// Nobody needs the image any more; told when it is closed.
    Close(Option<Sender<()>>),
}

/// What the requests and the thread share.
#[derive(Debug)]
struct State {
    spec: ImageSpec,
    size: AtomicU64,
    /// Why nothing is carried out any more.
    over: OnceLock<String>,
    /// Whether a request has asked for a look that is still to come: one is enough, however many requests fail.
    look_asked: AtomicBool,
}

impl State {
    fn end(&self, why: impl FnOnce() -> String) {
        self.over.get_or_init(why);
    }

    fn lose(&self) {
        self.end(|| {
            let why = format!(
                "another client has taken the exclusive lock of {}: nothing is read or written any more, until the server is \
                 restarted and gets the lock",
                self.spec
            );
            tracing::error!("{why}");
            why
        });
    }
}

/// The image until it is closed. Whoever submits a request, or makes another call, holds the lock for reading meanwhile.
struct Handle(RwLock<Option<OpenImage>>);

impl Handle {
    fn read(&self) -> RwLockReadGuard<'_, Option<OpenImage>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the image: waits for the requests that have begun, and gives the lock back.
    fn close(&self) {
        let image = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(image);
    }
}

/// An open image with its lock. Dropping it closes the image in the background.
pub struct Image {
    image: Arc<Handle>,
    tasks: Tasks,
    state: Arc<State>,
    identity: Identity,
    holder: String,
    period: u64,
    fast_diff: bool,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Image {
    /// Watches an image whose lock has been taken, and starts its thread. Blocks.
    pub(crate) fn start(
        mut image: OpenImage,
        spec: ImageSpec,
        facts: &Facts,
        holder: String,
        identity: Identity,
    ) -> Result<Image, Error> {
        let failed = |spec: &ImageSpec, why| Error::Failed { doing: "cannot watch", spec: spec.clone(), why };
        let (tasks, todo) = mpsc::channel();
        let news = tasks.clone();
        let notice = move || {
            // After the end of the thread nobody needs it.
            let _ = news.send(Task::Look);
        };
        image.watch(Box::new(notice)).map_err(|e| failed(&spec, e))?;
        // After the watch has begun, so that no change is missed.
        let size = image.size().map_err(|e| failed(&spec, e))?;
        let (image, state) = (
            Arc::new(Handle(RwLock::new(Some(image)))),
            Arc::new(State {
                spec: spec.clone(),
                size: AtomicU64::new(size),
                over: OnceLock::new(),
                look_asked: AtomicBool::new(false),
            }),
        );
        let (of_thread, told) = (image.clone(), state.clone());
        let run = move || serve(&todo, &of_thread, &told);
        let thread = std::thread::Builder::new().name("weft-rbd".to_owned()).spawn(run);
        thread.map_err(|e| Error::NoThread(spec, e))?;
        let (period, fast_diff) = (facts.period, facts.fast_diff);
        Ok(Image { image, tasks: Tasks(tasks), state, identity, holder, period, fast_diff })
    }

    /// The image's name.
    pub fn spec(&self) -> &ImageSpec {
        &self.state.spec
    }

    /// Which image it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The address with which this process holds the lock, for [`crate::open()`] after it has died.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// The size in bytes, as far as the cluster has told.
    pub fn size(&self) -> u64 {
        self.state.size.load(Ordering::Acquire)
    }

    /// Why nothing is carried out any more.
    pub fn over(&self) -> Option<&str> {
        self.state.over.get().map(String::as_str)
    }

    fn usable(&self) -> io::Result<()> {
        self.over().map_or(Ok(()), |why| Err(io::Error::other(why.to_owned())))
    }

    /// Submits a request, unless everything is over.
    fn submitted<R>(&self, submit: impl FnOnce(&OpenImage) -> R) -> io::Result<R> {
        self.usable()?;
        match &*self.image.read() {
            Some(image) => Ok(submit(image)),
            None => Err(io::Error::other("the image is closed")),
        }
    }

    /// Looks at the result of a request: it may tell that the lock is lost.
    fn heard<T>(&self, done: io::Result<T>) -> io::Result<T> {
        let Err(e) = done else { return done };
        if e.raw_os_error() == Some(FENCED) {
            self.state.lose();
        } else if e.kind() == io::ErrorKind::ReadOnlyFilesystem {
            // librbd has no lock to write with. The thread finds out whether it is gone for good.
            if !self.state.look_asked.swap(true, Ordering::AcqRel) {
                self.tasks.tell();
            }
        }
        // The first reason, if there is one by now.
        self.usable().and(Err(e))
    }

    /// Reads bytes from `offset` on into the buffers, and returns how many there were: fewer at the end of the image.
    pub async fn read<B: DerefMut<Target = [u8]> + Send + 'static>(
        &self,
        offset: u64,
        buffers: Vec<B>,
    ) -> io::Result<(usize, Vec<B>)> {
        let read = self.submitted(|image| image.read(offset, buffers))?.await;
        self.heard(read).map(|(bytes, filled)| (bytes, filled.buffers))
    }

    /// Writes all of `data`, at most [`MAX_SLICES`] pieces. `held` is dropped when librbd has ended the request, even if the
    /// future was dropped before.
    pub async fn write<T: Send + 'static>(&self, offset: u64, data: Vec<Bytes>, held: T) -> io::Result<()> {
        let written = self.submitted(|image| image.write(offset, data, held))?.await;
        self.heard(written).map(drop)
    }

    /// Says that a range is not needed. `held` as for writes.
    pub async fn discard<T: Send + 'static>(&self, offset: u64, len: u64, held: T) -> io::Result<()> {
        let discarded = self.submitted(|image| image.discard(offset, len, held))?.await;
        self.heard(discarded).map(drop)
    }

    /// Makes a range read as zeros, which are stored if `thick`. `held` as for writes.
    pub async fn write_zeroes<T: Send + 'static>(
        &self,
        offset: u64,
        len: usize,
        thick: bool,
        held: T,
    ) -> io::Result<()> {
        let zeroed = self.submitted(|image| image.write_zeroes(offset, len, thick, held))?.await;
        self.heard(zeroed).map(drop)
    }

    /// Makes durable what was answered before.
    pub async fn flush(&self) -> io::Result<()> {
        let flushed = self.submitted(OpenImage::flush)?.await;
        self.heard(flushed).map(drop)
    }

    /// Where something is stored from `offset` on, in order; and up to which byte that is known, which may be less than `len`
    /// bytes away.
    pub async fn stored(&self, offset: u64, len: u64) -> io::Result<(Vec<Range>, u64)> {
        self.usable()?;
        let (period, fast_diff) = (self.period, self.fast_diff);
        // Some versions misreport ranges that do not begin with an object.
        let first = offset.saturating_sub(offset.checked_rem(period).unwrap_or(0));
        let most = if fast_diff { MAPPED_BYTES } else { ASKED_BYTES }.max(period);
        let end = offset.saturating_add(len).min(first.saturating_add(most));
        let whole = end.checked_next_multiple_of(period).unwrap_or(end).min(self.size()).max(end);
        let asked = self.ask(move |image| image.diff(first, whole.saturating_sub(first), fast_diff)).await?;
        let diff = self.heard(asked)?;
        Ok((ranges(diff, offset, end), end))
    }

    /// Makes it at least that long. Blocks, for a limited time.
    pub fn grow(&self, size: u64) -> Result<(), Error> {
        self.resize(size, move |now| now < size)
    }

    /// Makes it that short, if it is longer. Blocks, for a limited time.
    pub fn shrink(&self, size: u64) -> Result<(), Error> {
        self.resize(size, move |now| now > size)
    }

    /// Changes the size if that `is_needed`, which the image's thread decides when it is its turn: somebody else may have changed it by then.
    fn resize(&self, size: u64, is_needed: impl Fn(u64) -> bool + Send + 'static) -> Result<(), Error> {
        let failed = |why| Error::Failed { doing: "cannot resize", spec: self.spec().clone(), why };
        self.usable().map_err(failed)?;
        let (send, sized) = mpsc::channel();
        let state = self.state.clone();
        // Taken by who is first: the thread that begins, or who gives up. What was given up must not happen later, after another change.
        let is_wanted = Arc::new(AtomicBool::new(true));
        let begins = is_wanted.clone();
        let resize = move |image: &OpenImage| {
            if !begins.swap(false, Ordering::AcqRel) {
                return;
            }
            let done = image.size().and_then(|now| match is_needed(now) {
                true => image.resize(size).and_then(|()| image.size()),
                false => Ok(now),
            });
            // Whoever asked may have given up.
            let _ = send.send(done.map(|size| state.size.store(size, Ordering::Release)));
        };
        self.tasks.give(Box::new(resize));
        match sized.recv_timeout(RESIZE) {
            Ok(done) => self.heard(done).map_err(failed),
            Err(_) => {
                is_wanted.store(false, Ordering::Release);
                Err(Error::Silent { spec: self.spec().clone(), seconds: RESIZE.as_secs() })
            }
        }
    }

    /// Closes the image, so that another server can take its lock at once; no request is carried out any more. Blocks, for a
    /// limited time: returns whether the cluster has answered.
    pub fn end(&self) -> bool {
        self.state.end(|| "the server is ending".to_owned());
        let (send, closed) = mpsc::channel();
        self.tasks.close(Some(send));
        closed.recv_timeout(END).is_ok()
    }

    /// Has the thread make a call.
    async fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&OpenImage) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (answers, answered) = answer();
        self.tasks.give(Box::new(move |image: &OpenImage| answers.give(call(image))));
        answered.await.ok_or_else(|| io::Error::other("the thread of the image has ended"))
    }
}

/// The most pieces of one write (IOV_MAX).
pub const MAX_SLICES: usize = 1024;

/// What the thread shall do. As many calls wait as requests do.
struct Tasks(Sender<Task>);

impl Tasks {
    fn tell(&self) {
        // Sending fails only if the thread has panicked. Its jobs are dropped then, which their callers notice.
        let _ = self.0.send(Task::Look);
    }

    fn give(&self, job: Job) {
        // As above: the job is dropped.
        let _ = self.0.send(Task::Do(job));
    }

    fn close(&self, told: Option<Sender<()>>) {
        // As above.
        let _ = self.0.send(Task::Close(told));
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.close(None);
    }
}

/// The thread of an image, until it is closed.
fn serve(todo: &Receiver<Task>, handle: &Handle, state: &State) {
    let mut missing_since = None;
    loop {
        let wait = if missing_since.is_some() { LOOK_AGAIN } else { LOOK_EVERY };
        let task = todo.recv_timeout(wait);
        let told = match task {
            Ok(Task::Close(told)) => told,
            Err(RecvTimeoutError::Disconnected) => None,
            Ok(Task::Do(job)) => {
                if let Some(image) = &*handle.read() {
                    job(image);
                }
                continue;
            }
            Ok(Task::Look) => {
                state.look_asked.store(false, Ordering::Release);
                if let Some(image) = &*handle.read() {
                    see_size(image, state);
                    missing_since = look_at_lock(image, state, missing_since);
                }
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {
                let image = handle.read();
                missing_since = image.as_ref().and_then(|image| look_at_lock(image, state, missing_since));
                continue;
            }
        };
        handle.close();
        if let Some(told) = told {
            // Whoever asked may have given up.
            let _ = told.send(());
        }
        return;
    }
}

/// Since when the lock is missing, which ends everything after [`LOOK_AGAIN`].
fn look_at_lock(image: &OpenImage, state: &State, missing_since: Option<Instant>) -> Option<Instant> {
    if !has_no_lock(image, state) {
        return None;
    }
    let since = missing_since.unwrap_or_else(Instant::now);
    if since.elapsed() >= LOOK_AGAIN {
        state.lose();
    }
    Some(since)
}

fn see_size(image: &OpenImage, state: &State) {
    match image.size() {
        Ok(size) => {
            let before = state.size.swap(size, Ordering::AcqRel);
            if size < before {
                tracing::error!(
                    "{} was made smaller, from {before} to {size} bytes, while it is served: requests past its end fail",
                    state.spec
                );
            } else if size > before {
                tracing::info!("{} has grown from {before} to {size} bytes", state.spec);
            }
        }
        Err(e) => tracing::warn!("the size of {} is unknown: {e}", state.spec),
    }
}

fn has_no_lock(image: &OpenImage, state: &State) -> bool {
    if state.over.get().is_some() {
        return false;
    }
    match image.has_lock() {
        Ok(has) => !has,
        Err(e) if e.raw_os_error() == Some(FENCED) => {
            state.lose();
            false
        }
        Err(e) => {
            tracing::warn!("cannot ask who has the lock of {}: {e}", state.spec);
            false
        }
    }
}

/// The stored parts inside of a range, in order and apart from each other.
fn ranges(mut diff: Vec<Diff>, start: u64, end: u64) -> Vec<Range> {
    diff.sort_unstable_by_key(|part| part.offset);
    let mut ranges: Vec<Range> = Vec::new();
    for part in diff.into_iter().filter(|part| part.data) {
        let range =
            Range { start: part.offset.max(start), end: part.offset.saturating_add(part.len).min(end) };
        if range.start >= range.end {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => ranges.push(range),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_objects_become_ranges_inside_of_what_was_asked() {
        let part = |offset, len, data| Diff { offset, len, data };
        let diff = vec![
            part(8, 4, true),
            part(0, 4, true),
            part(4, 4, true),
            part(16, 4, false),
            part(20, 10, true),
        ];
        let range = |start, end| Range { start, end };
        assert_eq!(ranges(diff.clone(), 0, 100), [range(0, 12), range(20, 30)]);
        assert_eq!(ranges(diff.clone(), 6, 25), [range(6, 12), range(20, 25)]);
        assert_eq!(ranges(diff, 12, 20), []);
    }
}
