//! Counts that are metrics by their names: what counts something says so once, in its doc comment.

/// Declares a struct `Counts`, and lists its fields with their help. The prefix begins the name of each metric.
macro_rules! counts {
    ($(#[doc = $of:literal])* $prefix:literal $($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        $(#[doc = $of])*
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $($(#[doc = $doc])* pub(crate) $name: std::sync::atomic::AtomicU64,)*
        }

        impl Counts {
            /// Names, what each counts, and how many.
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
