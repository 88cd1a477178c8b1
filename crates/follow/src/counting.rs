//! Macro for counters that are shown as metrics. A counter's field name is the end of its metric's name, and its doc
//! comment is the metric's help text.

/// Declares a struct `Counts` of counters, with a method that lists the names and help texts of the counters' metrics.
/// Each metric's name begins with `$prefix`.
macro_rules! counts {
    ($(#[doc = $of:literal])* $prefix:literal $($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        $(#[doc = $of])*
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $($(#[doc = $doc])* pub(crate) $name: std::sync::atomic::AtomicU64,)*
        }

        impl Counts {
            /// Returns all counters, each as the metric's name, its help text, and the current value.
            pub(crate) fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                let of = |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
                vec![$((
                    concat!($prefix, stringify!($name)),
                    concat!($($doc),*).trim_ascii(),
                    of(&self.$name),
                )),*]
            }
        }
    };
}

pub(crate) use counts;
