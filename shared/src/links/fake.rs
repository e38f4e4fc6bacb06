//! A world in memory for tests: the table with the same conditions, objects, and trouble on demand.

use super::event::Pointer;
use super::run::{Intake, Outputs, OutputsError};
use crate::error::{CallError, Class};
use crate::store::memory::MemoryTable;
use crate::store::{Item, Key, Page, Query, Table, Write, WriteError};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing special.
    None,
    /// Refused for being too much; no effect.
    Throttled,
    /// No answer, and no effect.
    TimedOut,
    /// No answer, but the effect is there.
    AnswerLost,
}

/// A table and objects in memory.
#[derive(Debug, Default)]
pub struct FakeWorld {
    /// The table.
    pub table: RefCell<MemoryTable>,
    /// Objects by bucket, key and version.
    pub objects: BTreeMap<(String, String, Option<String>), Vec<u8>>,
    /// What happens to the next writes.
    pub trouble: RefCell<VecDeque<Trouble>>,
    /// Changes someone else makes just before the next writes.
    pub meanwhile: RefCell<VecDeque<Vec<Write>>>,
    /// Writes tried.
    pub writes: Cell<usize>,
    /// Writes in flight now, and the most there ever were.
    pub in_flight: Cell<(usize, usize)>,
}

impl FakeWorld {
    /// The item of a key.
    pub fn item(&self, key: &Key) -> Option<Item> {
        self.table.borrow().get(key)
    }
}

fn failed(class: Class, action: &str) -> CallError {
    CallError::new(class, action, "Scripted", "scripted by a test")
}

impl Table for FakeWorld {
    async fn get(&self, key: &Key) -> Result<Option<Item>, CallError> {
        Ok(self.item(key))
    }

    async fn query(&self, query: &Query) -> Result<Page, CallError> {
        Ok(self.table.borrow().query(query))
    }

    async fn write(&self, writes: &[Write], _token: &str) -> Result<(), WriteError> {
        let (now, most) = self.in_flight.get();
        self.in_flight.set((now + 1, most.max(now + 1)));
        yield_once().await;
        self.in_flight
            .set((self.in_flight.get().0 - 1, self.in_flight.get().1));
        self.writes.set(self.writes.get() + 1);
        let action = "dynamodb:UpdateItem";
        let trouble = self.trouble.borrow_mut().pop_front().unwrap_or(Trouble::None);
        match trouble {
            Trouble::Throttled => return Err(failed(Class::Throttled, action).into()),
            Trouble::TimedOut => return Err(failed(Class::TimedOut, action).into()),
            Trouble::None | Trouble::AnswerLost => {}
        }
        if let Some(other) = self.meanwhile.borrow_mut().pop_front() {
            self.table.borrow_mut().write(&other)?;
        }
        let result = self.table.borrow_mut().write(writes);
        if trouble == Trouble::AnswerLost {
            return Err(failed(Class::TimedOut, action).into());
        }
        result
    }
}

impl Outputs for FakeWorld {
    async fn read(&self, pointer: &Pointer) -> Result<Vec<u8>, OutputsError> {
        let key = (
            pointer.bucket.clone(),
            pointer.key.clone(),
            pointer.version_id.clone(),
        );
        let Some(object) = self.objects.get(&key) else {
            return Err(failed(Class::NotFound, "s3:GetObject").into());
        };
        let mut intake = Intake::new(pointer);
        for piece in object.chunks(7) {
            intake.push(piece)?;
        }
        intake.finish()
    }
}

/// Lets every other future of the same task have a turn.
fn yield_once() -> impl Future<Output = ()> {
    struct Once(bool);
    impl Future for Once {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
    Once(false)
}

/// Runs a future of this world to its end; nothing here waits for anything outside.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
    }
}
