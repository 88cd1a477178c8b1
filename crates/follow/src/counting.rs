//! Counters whose field names are their metrics' names and whose doc comments are the metrics' help.

/// Declares a struct `Counts` of counters, with a list of their names and help texts. `$prefix` begins each metric's
/// name.
macro_rules! counts {
    ($(#[doc = $of:literal])* $prefix:literal $($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        $(#[doc = $of])*
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $($(#[doc = $doc])* pub(crate) $name: std::sync::atomic::AtomicU64,)*
        }

        impl Counts {
            /// All counters: name of the metric, help text, and present value.
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
