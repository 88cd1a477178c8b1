//! Whether a service and its log are together.

/// Whether they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// Not connected.
    Down,
    /// Connected. What is read may be of long ago.
    Behind,
    /// Connected, and what is read is of now.
    Up,
}
