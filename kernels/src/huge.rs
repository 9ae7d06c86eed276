//! Large memory in large pages.
//!
//! A forward goes through gigabytes of weights and matrices again and again; in pages of 4 KiB most of its cache misses
//! are misses of the translation as well. Where the system gives huge pages to whoever asks (`madvise` or `always` in
//! `/sys/kernel/mm/transparent_hugepage/enabled`), this asks; where it does not, nothing changes.

/// Bytes of a huge page, on x86-64 and on most others.
const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages under `values`, best before they are written for the first time.
pub(crate) fn advise<T>(values: &[T]) {
    let range = values.as_ptr_range();
    let first = (range.start as usize).next_multiple_of(HUGE_PAGE);
    let bytes = (range.end as usize).saturating_sub(first) / HUGE_PAGE * HUGE_PAGE;
    if bytes == 0 {
        return;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the range is inside `values`; the advice changes how it is mapped, not what it holds. That it may be refused
    // is no error: the memory is as good in small pages.
    unsafe {
        libc::madvise(first as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE);
    }
}
