//! Pods by number. A number is released when its pod holds nothing.

use std::sync::Arc;

use hashbrown::HashMap;

use super::sets::Watch;

#[derive(Debug, Default)]
pub(super) struct Pods {
    numbers: HashMap<Arc<str>, u32>,
    /// Name and number of uses.
    pods: Vec<(Option<Arc<str>>, u32)>,
    vacant: Vec<u32>,
}

impl Pods {
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The number of a pod, assigned if new, and kept at least until [`Watch::left`] is called.
    pub(super) fn hold(&mut self, name: &str) -> u32 {
        let pod = match self.find(name) {
            Some(pod) => pod,
            None => self.add(name),
        };
        self.joined(pod);
        pod
    }

    fn add(&mut self, name: &str) -> u32 {
        let name: Arc<str> = name.into();
        let pod = self.vacant.pop().unwrap_or_else(|| {
            self.pods.push((None, 0));
            (self.pods.len() - 1) as u32
        });
        self.pods[pod as usize].0 = Some(name.clone());
        self.numbers.insert(name, pod);
        pod
    }

    pub(super) fn name(&self, pod: u32) -> Option<&Arc<str>> {
        self.pods[pod as usize].0.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let names: usize = self.numbers.keys().map(|name| name.len() + 16).sum();
        names + self.numbers.allocation_size() + self.pods.capacity() * size_of::<(Option<Arc<str>>, u32)>()
    }
}

impl Watch for Pods {
    fn joined(&mut self, pod: u32) {
        self.pods[pod as usize].1 += 1;
    }

    fn left(&mut self, pod: u32) {
        let (name, uses) = &mut self.pods[pod as usize];
        *uses -= 1;
        if *uses == 0
            && let Some(name) = name.take()
        {
            self.numbers.remove(&name);
            self.vacant.push(pod);
        }
    }
}
