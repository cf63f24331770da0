//! Bounds on what a template may use. A template comes with a model file, so it may be hostile: a
//! few doublings of a string would otherwise take all memory.
//!
//! A render runs on a thread of its own. The allocator below counts that thread's live bytes, and
//! every operation that a template can name calls `check` first, so memory stays within the limit
//! plus one operation; `check_size` bounds the one operation.

use minijinja::{Error, ErrorKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Largest number of elements that one list operation may make or nest.
const NODES_MAX: usize = 1 << 20;
const DEPTH_MAX: usize = 200;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static LIMIT_BYTES: Cell<i64> = const { Cell::new(i64::MAX) };
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
    static HIT: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, with the live bytes of each thread counted.
pub struct Counting;

fn count(bytes: i64) {
    // Not there any more while the thread's locals are torn down; nothing is counted then.
    let _ = LIVE.try_with(|live| live.set(live.get().wrapping_add(bytes)));
}

// Safety: every call goes to `System` unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        System.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        System.alloc_zeroed(layout)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        System.dealloc(pointer, layout)
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - layout.size() as i64);
        System.realloc(pointer, layout, new_size)
    }
}

/// Starts the count of the calling thread.
pub fn start(bytes: u64, time_ms: u64) {
    LIVE.with(|c| c.set(0));
    LIMIT_BYTES.with(|c| c.set(bytes.min(i64::MAX as u64) as i64));
    DEADLINE.with(|c| c.set(Some(Instant::now() + Duration::from_millis(time_ms))));
    CALLS.with(|c| c.set(0));
    HIT.with(|c| c.set(false));
}

pub fn was_hit() -> bool {
    HIT.with(Cell::get)
}

fn hit(what: &'static str) -> Error {
    HIT.with(|c| c.set(true));
    Error::new(ErrorKind::InvalidOperation, what)
}

/// Fails once the thread holds more bytes than it may, or its time is over.
pub fn check() -> Result<(), Error> {
    let limit = LIMIT_BYTES.with(Cell::get);
    if LIVE.with(Cell::get) > limit {
        return Err(hit("the template uses too much memory"));
    }
    let calls = CALLS.with(|c| {
        c.set(c.get().wrapping_add(1));
        c.get()
    });
    if calls % 64 == 0 {
        if let Some(deadline) = DEADLINE.with(Cell::get) {
            if Instant::now() > deadline {
                return Err(hit("the template runs for too long"));
            }
        }
    }
    Ok(())
}

/// Fails if one string of `bytes` would pass the limit.
pub fn check_size(bytes: usize) -> Result<(), Error> {
    let limit = LIMIT_BYTES.with(Cell::get);
    if bytes as u64 > limit as u64 / 4 {
        return Err(hit("the template makes too long a string"));
    }
    check()
}

/// Fails if `value` nests too deeply or reaches too many elements, counting shared ones each time:
/// a list that holds another twice, thirty times over, is small in memory and endless to print.
pub fn check_shape(value: &minijinja::Value) -> Result<(), Error> {
    let mut nodes = 0;
    walk(value, 0, &mut nodes)?;
    check()
}

fn walk(value: &minijinja::Value, depth: usize, nodes: &mut usize) -> Result<(), Error> {
    use minijinja::value::ValueKind;
    *nodes += 1;
    if *nodes > NODES_MAX || depth > DEPTH_MAX {
        return Err(hit("the template builds too large a list"));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                walk(&item, depth + 1, nodes)?;
            }
        }
        ValueKind::Map => {
            if let Some(pairs) = value.as_object().and_then(|o| o.try_iter_pairs()) {
                for (_, item) in pairs {
                    walk(&item, depth + 1, nodes)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}
