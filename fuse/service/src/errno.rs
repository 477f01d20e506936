//! Error numbers, as clients see them.

/// A Linux error number (positive).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident: $text:literal,)*) => {
        #[expect(missing_docs, reason = "the names are Linux' own; Display explains them")]
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*

            /// Linux' symbolic name and meaning, for errors that a service has a reason to return.
            fn text(self) -> Option<&'static str> {
                match self {
                    $(Errno::$name => Some(concat!(stringify!($name), ": ", $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    E2BIG: "argument too big",
    EACCES: "permission denied",
    EBADF: "no such open file",
    EBUSY: "busy",
    EEXIST: "name exists",
    EFBIG: "file too large",
    EINTR: "interrupted",
    EINVAL: "invalid argument",
    EIO: "input/output error",
    EISDIR: "is a directory",
    EMLINK: "too many links",
    ENAMETOOLONG: "name too long",
    ENODATA: "no such extended attribute",
    ENOENT: "no such file or directory",
    ENOMEM: "out of memory",
    ENOSPC: "no space left",
    ENOSYS: "not implemented",
    ENOTDIR: "not a directory",
    ENOTEMPTY: "directory not empty",
    ENXIO: "no such offset or device",
    EOPNOTSUPP: "operation not supported",
    EPERM: "not permitted",
    ERANGE: "out of range",
    EROFS: "read-only",
    ESTALE: "stale",
    EXDEV: "crosses filesystems",
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}
