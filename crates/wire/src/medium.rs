//! Media of engines, and the tiers that they are.

use std::borrow::Cow;

use kvatlas_index::Tier;

/// Names by which engines and connectors call their media, in lower case. Whatever is not here is external: a block in
/// an unknown place must not count as in device memory, nor as something this host can load by itself.
const MEDIA: [(&str, Tier); 17] = [
    ("gpu", Tier::Gpu),
    ("", Tier::Gpu),
    ("device", Tier::Gpu),
    ("cpu", Tier::Cpu),
    ("cpu_pinned", Tier::Cpu),
    ("cpu_tier1", Tier::Cpu),
    ("host", Tier::Cpu),
    ("localcpubackend", Tier::Cpu),
    ("disk", Tier::Disk),
    ("storage", Tier::Disk),
    ("nvme", Tier::Disk),
    ("cpu_tier2", Tier::Disk),
    ("localdiskbackend", Tier::Disk),
    ("gdsbackend", Tier::Disk),
    ("external", Tier::External),
    ("remote", Tier::External),
    ("remotebackend", Tier::External),
];

/// The media as engines write them, so that no event needs a string of its own.
const USUAL: [&str; 6] = ["GPU", "CPU", "CPU_PINNED", "STORAGE", "DISK", "EXTERNAL"];

/// The tier of a medium, whatever its case; none is device memory. What is stored remotely is external wherever it
/// says that it lies.
pub(crate) fn tier(medium: Option<&str>, locality: Option<&str>) -> Tier {
    if locality.is_some_and(|locality| locality.eq_ignore_ascii_case("remote")) {
        return Tier::External;
    }
    let Some(medium) = medium else { return Tier::Gpu };
    let known = MEDIA.iter().find(|(name, _)| name.eq_ignore_ascii_case(medium));
    known.map_or(Tier::External, |&(_, tier)| tier)
}

/// The text, without an allocation if it is a usual one.
pub(crate) fn intern(medium: &str) -> Cow<'static, str> {
    let usual = USUAL.iter().find(|&&usual| usual == medium);
    usual.map_or_else(|| Cow::Owned(medium.to_owned()), |&usual| Cow::Borrowed(usual))
}
