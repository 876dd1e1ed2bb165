//! The border to C: return codes, output parameters, and the macros that declare NVML's functions.
//!
//! Callers hold to NVML's documentation: a pointer is null, or points to memory of the declared type; a buffer
//! has the length that is passed with it. Functions are declared with types for which C and Rust agree under
//! that rule (`Option<&mut MaybeUninit<T>>` is a nullable pointer), so that only buffers of a length given at run
//! time need unsafe code.

use std::ffi::{CStr, c_char, c_uint};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use genv_simulator::{WrongAnswer, WrongText};
use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};

/// The answer of a call; the error is NVML's code.
pub(crate) type Answer<T = ()> = Result<T, nvmlReturn_t>;

/// An output parameter: a pointer that may be null, to memory that may not be initialised.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// A parameter that is read and written: a pointer that may be null.
pub(crate) type InOut<'a, T> = Option<&'a mut T>;

/// Runs a call and converts its result to a return code; a panic never crosses into C.
pub(crate) fn answer(call: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

pub(crate) fn put<T>(out: Out<'_, T>, value: T) -> Answer {
    out.ok_or(INVALID_ARGUMENT)?.write(value);
    Ok(())
}

/// Writes `bytes` to a buffer of `length` characters.
fn put_bytes(buffer: *mut c_char, length: c_uint, bytes: &[u8]) -> Answer {
    if buffer.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if bytes.len() > length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller's buffer holds `length` characters, and these are no more.
    unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    Ok(())
}

/// Writes `text` and a NUL to a buffer of `length` characters.
pub(crate) fn put_text(buffer: *mut c_char, length: c_uint, text: &str) -> Answer {
    put_bytes(buffer, length, &[text.as_bytes(), &[0]].concat())
}

/// As [`put_text`], or what the scenario puts in the text's place.
pub(crate) fn put_text_or(wrong: Option<WrongAnswer>, buffer: *mut c_char, length: c_uint, text: &str) -> Answer {
    match wrong {
        Some(WrongAnswer::Text(WrongText::Empty)) => put_text(buffer, length, ""),
        Some(WrongAnswer::Text(WrongText::NotUtf8)) => put_bytes(buffer, length, b"\xff\xfe\xc3\0"),
        Some(WrongAnswer::Text(WrongText::Unterminated)) => put_bytes(buffer, length, &vec![b'x'; length as usize]),
        _ => put_text(buffer, length, text),
    }
}

/// Answers with a list by NVML's rule: `count` holds the capacity on entry and the number of items on return; too
/// small a capacity is an error with the needed number.
pub(crate) fn put_list<T>(count: InOut<'_, c_uint>, buffer: *mut T, items: &[T]) -> Answer
where
    T: Copy,
{
    let count = count.ok_or(INVALID_ARGUMENT)?;
    let capacity = *count as usize;
    *count = items.len() as c_uint;
    if items.is_empty() {
        return Ok(());
    }
    if capacity < items.len() {
        return Err(INSUFFICIENT_SIZE);
    }
    if buffer.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's buffer holds `capacity` items, which is no fewer than these.
    unsafe { buffer.copy_from_nonoverlapping(items.as_ptr(), items.len()) };
    Ok(())
}

/// Reads a text parameter; `None` if it is not UTF-8.
pub(crate) fn text<'a>(pointer: *const c_char) -> Answer<&'a str> {
    if pointer.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: the caller's text ends with a NUL and outlives the call, during which alone it is used.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// `text` in a fixed array of characters, cut to leave room for the NUL.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

macro_rules! call {
    (free $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::abi::answer(move || $body)
        }
    };
    (host $name:ident($host:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::abi::answer(move || {
                let $host = &$crate::driver::host(stringify!($name))?;
                $body
            })
        }
    };
    ($of:ident $name:ident($device:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($device: $crate::device::Handle $(, $arg: $type)*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::abi::answer(move || {
                let $device = &$crate::driver::$of(stringify!($name), $device)?;
                $body
            })
        }
    };
}

/// Declares functions, and others that do the same. Those of the kind `free` take no device and need no initialised
/// library. The first parameter of the others is not C's: with `host` it is the host as it is now; with `device` (a whole
/// GPU or a MIG device) and `gpu` (which a MIG device does not answer) the handle becomes the device as it is now.
macro_rules! calls {
    ($of:ident: $(fn $name:ident $args:tt $(also $alias:ident)* $body:block)*) => {$(
        $crate::abi::call! { $of $name $args $body }
        $($crate::abi::call! { $of $alias $args $body })*
    )*};
}

/// Declares functions of a whole GPU that write one number.
macro_rules! numbers {
    ($($name:ident($device:ident, $number:ty) => $truth:expr;)*) => {
        $crate::abi::calls! { gpu:
            $(fn $name($device, out: $crate::abi::Out<'_, $number>) { $device.put(out, $truth) })*
        }
    };
}

pub(crate) use {call, calls, numbers};
