//! `strftime` of the C library, which Python's uses too.

use std::ffi::CString;

const FORMAT_BYTES_MAX: usize = 256;

/// `now_s` (seconds since 1970) in the process's time zone.
pub fn strftime(now_s: i64, format: &str) -> Result<String, String> {
    if format.is_empty() {
        return Ok(String::new());
    }
    if format.len() > FORMAT_BYTES_MAX {
        return Err(format!("a time format is limited to {FORMAT_BYTES_MAX} bytes"));
    }
    // A digit after % is a field width in glibc, and can ask for gigabytes.
    if format.split('%').skip(1).any(|part| part.starts_with(|c: char| c.is_ascii_digit())) {
        return Err("field widths are not supported in a time format".into());
    }
    let format = CString::new(format).map_err(|_| "a time format can't hold a zero byte")?;
    let mut out = vec![0u8; 64 * FORMAT_BYTES_MAX];
    // Safety: localtime_r fills `tm`, and strftime writes at most out.len() bytes.
    let written = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now_s, &mut tm).is_null() {
            return Err("the time is out of range".into());
        }
        libc::strftime(out.as_mut_ptr().cast(), out.len(), format.as_ptr(), &tm)
    };
    out.truncate(written);
    String::from_utf8(out).map_err(|_| "the time is not written in UTF-8".into())
}
