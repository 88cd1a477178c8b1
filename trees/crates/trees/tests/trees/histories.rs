//! Tests of the trees with random sequences of operations: after each operation the answer, and from time to time the
//! whole tree, is compared with a model.

use kvatlas_trees::string_tree::StringTree;
use kvatlas_trees::token_tree::TokenTree;
use kvatlas_trees::{EvictionPolicy, hash_node_path, hash_token_path};

use crate::model::{Model, Node};
use kvatlas_testing::{Random, seeds};

/// Sizes that a tree reports: of each tenant from running counts, of each tenant from a recount, and in total.
type Sizes = (Vec<(String, usize)>, Vec<(String, usize)>, usize);

/// Methods common to `StringTree` and `TokenTree` that the tests use.
pub(crate) trait Tree {
    type Item: Copy + Ord + std::fmt::Debug + 'static;
    const ALPHABET: &'static [Self::Item];

    fn make(page: usize, policy: EvictionPolicy) -> Self;
    fn insert(&self, key: &[Self::Item], tenant: &str, priority: i32);
    fn matches(&self, key: &[Self::Item]) -> (usize, Option<String>, usize, usize);
    fn match_and_insert(&self, key: &[Self::Item], tenant: Option<&str>) -> (usize, Option<String>);
    fn match_tenant(&self, key: &[Self::Item], tenant: &str) -> usize;
    fn depths(&self, key: &[Self::Item]) -> Vec<(String, usize)>;
    fn sizes(&self) -> Sizes;
    fn evict_tenant(&self, tenant: &str, most: usize) -> usize;
    fn evict_each(&self, most: usize) -> usize;
    fn evict_to_size(&self, most: usize) -> usize;
    fn evict_path(&self, path: &[Self::Item], tenant: Option<&str>) -> usize;
    fn remove_tenant(&self, tenant: &str) -> usize;
    fn entries(&self) -> Vec<Node<Self::Item>>;
    fn node_count(&self) -> usize;
    fn snapshot(&self) -> Vec<u8>;
    fn restore(bytes: &[u8]) -> Self;
}

fn named(list: Vec<(std::sync::Arc<str>, usize)>) -> Vec<(String, usize)> {
    list.into_iter().map(|(name, n)| (name.to_string(), n)).collect()
}

macro_rules! tree {
    ($tree:ident, $item:ty, $alphabet:expr, $make:expr, $key:expr, $path:expr, $insert:ident, $hash:ident) => {
        impl Tree for $tree {
            type Item = $item;
            const ALPHABET: &'static [$item] = $alphabet;

            fn make(page: usize, policy: EvictionPolicy) -> Self {
                $make(page, policy)
            }
            fn insert(&self, key: &[$item], tenant: &str, priority: i32) {
                self.$insert(&$key(key), tenant, priority);
            }
            fn matches(&self, key: &[$item]) -> (usize, Option<String>, usize, usize) {
                let found = self.match_prefix_with_counts(&$key(key));
                (found.matched, found.tenant.map(|t| t.to_string()), found.input, found.paged)
            }
            fn match_and_insert(&self, key: &[$item], tenant: Option<&str>) -> (usize, Option<String>) {
                let found = self.match_and_insert_with(&$key(key), |_| tenant);
                (found.matched, found.tenant.map(|t| t.to_string()))
            }
            fn match_tenant(&self, key: &[$item], tenant: &str) -> usize {
                self.prefix_match_tenant(&$key(key), tenant)
            }
            fn depths(&self, key: &[$item]) -> Vec<(String, usize)> {
                named(self.match_all(&$key(key)))
            }
            fn sizes(&self) -> Sizes {
                (named(self.tenant_sizes()), named(self.recount()), self.total_size())
            }
            fn evict_tenant(&self, tenant: &str, most: usize) -> usize {
                self.evict_tenant(tenant, most)
            }
            fn evict_each(&self, most: usize) -> usize {
                self.evict_tenant_by_size(most)
            }
            fn evict_to_size(&self, most: usize) -> usize {
                self.evict_to_size(most)
            }
            fn evict_path(&self, path: &[$item], tenant: Option<&str>) -> usize {
                self.evict_by_path_hash($hash(&$key(path)), tenant)
            }
            fn remove_tenant(&self, tenant: &str) -> usize {
                self.remove_tenant(tenant)
            }
            fn entries(&self) -> Vec<Node<$item>> {
                self.iter_entries()
                    .map(|e| ($path(e.path), e.tenants.into_iter().map(|(name, at)| (name.to_string(), at)).collect()))
                    .collect()
            }
            fn node_count(&self) -> usize {
                self.node_count()
            }
            fn snapshot(&self) -> Vec<u8> {
                self.snapshot()
            }
            fn restore(bytes: &[u8]) -> Self {
                Self::from_snapshot(bytes).unwrap()
            }
        }
    };
}

tree!(
    StringTree,
    char,
    &['a', 'b', 'é', '静', '靘', '🙂'],
    |_, policy| StringTree::with_policy(policy),
    |key: &[char]| key.iter().collect::<String>(),
    |path: String| path.chars().collect::<Vec<char>>(),
    insert_text_with_priority,
    hash_node_path
);
tree!(
    TokenTree,
    u32,
    &[0, 1, 70_000, u32::MAX],
    |page, policy| TokenTree::with_config(page, policy).unwrap(),
    <[u32]>::to_vec,
    |path: Vec<u32>| path,
    insert_tokens_with_priority,
    hash_token_path
);

/// Random prompt that often shares a long beginning with others: a few letters, each repeated several times.
fn key<T: Tree>(rng: &mut Random, page: usize) -> Vec<T::Item> {
    let stretches = rng.index(6);
    let mut key = Vec::new();
    for _ in 0..stretches {
        let item = T::ALPHABET[rng.index(T::ALPHABET.len())];
        let times = if rng.index(8) == 0 { 70 } else { 1 + rng.index(2) };
        key.extend(std::iter::repeat_n(item, times * page));
    }
    if page > 1 && !key.is_empty() {
        let place = rng.index(key.len());
        if rng.index(3) == 0 {
            key[place] = T::ALPHABET[rng.index(T::ALPHABET.len())];
        }
        key.truncate(key.len() - rng.index(page).min(key.len()));
    }
    key
}

/// Entries in which each node has the last access of the node and the nodes below: the tree writes an access only to
/// the node where it ended.
fn with_accesses_below<I: Copy + Ord>(entries: Vec<Node<I>>) -> Vec<Node<I>> {
    let last = |path: &[I], name: &str| {
        let below = entries.iter().filter(|(other, _)| other.starts_with(path));
        below.flat_map(|(_, tenants)| tenants).filter(|(other, _)| other == name).map(|(_, at)| *at).max()
    };
    let named = |path: &[I], name: &String| (name.clone(), last(path, name).unwrap());
    entries
        .iter()
        .map(|(path, tenants)| (path.clone(), tenants.iter().map(|(name, _)| named(path, name)).collect()))
        .collect()
}

fn history<T: Tree>(seed: u64, page: usize, policy: EvictionPolicy, steps: usize) {
    let says = format!("seed {seed}, page {page}, {policy}");
    let mut rng = Random(seed);
    let (mut tree, mut model) = (T::make(page, policy), Model::new(page, policy));
    let names = ["w0", "w1", "w2", "tenant with a longer name"];
    for step in 0..steps {
        let key = key::<T>(&mut rng, page);
        let whole = key.len() / page * page;
        let tenant = names[rng.index(names.len())];
        let says = format!("{says}, step {step}");
        match rng.index(20) {
            0..=6 => {
                let priority = rng.index(5) as i32 - 2;
                tree.insert(&key, tenant, priority);
                model.insert(&key, tenant, priority);
            }
            7..=9 => {
                let (matched, who) = model.matches(&key);
                assert_eq!(tree.matches(&key), (matched, who, key.len(), whole), "{says}");
            }
            10..=11 => {
                let chosen = (rng.index(4) > 0).then_some(tenant);
                let found = model.matches(&key);
                if let Some(tenant) = chosen {
                    model.insert(&key, tenant, 0);
                }
                assert_eq!(tree.match_and_insert(&key, chosen), found, "{says}");
            }
            12 => assert_eq!(tree.match_tenant(&key, tenant), model.match_tenant(&key, tenant), "{says}"),
            13..=14 => assert_eq!(tree.depths(&key), model.depths(&key), "{says}"),
            15 => {
                let most = rng.index(20 * page);
                assert_eq!(tree.evict_tenant(tenant, most), model.evict_tenant(tenant, most), "{says}");
            }
            16 => {
                let most = rng.index(60 * page);
                let wanted: usize = names.iter().map(|t| model.evict_tenant(t, most)).sum();
                assert_eq!(tree.evict_each(most), wanted, "{says}");
            }
            17 => {
                let most = model.total() * (2 + rng.index(4)) / 5;
                assert_eq!(tree.evict_to_size(most), model.evict_to_size(most), "{says}");
            }
            18 => {
                let paths: Vec<Vec<T::Item>> = model.nodes.keys().cloned().collect();
                let path =
                    if paths.is_empty() || rng.index(4) == 0 { key } else { paths[rng.index(paths.len())].clone() };
                let who = (rng.index(3) > 0).then_some(tenant);
                if !path.is_empty() {
                    assert_eq!(tree.evict_path(&path, who), model.evict_path(&path, who), "{says}");
                }
            }
            _ if rng.index(4) == 0 => {
                let bytes = tree.snapshot();
                tree = T::restore(&bytes);
                assert_eq!(tree.snapshot(), bytes, "{says}");
            }
            _ => {}
        }
        if step % 7 == 0 {
            let sizes: Vec<(String, usize)> = model.sizes().into_iter().collect();
            assert_eq!(tree.sizes(), (sizes.clone(), sizes, model.total()), "{says}");
            assert_eq!(with_accesses_below(tree.entries()), model.entries(), "{says}");
            assert_eq!(tree.node_count(), model.nodes.len(), "{says}");
        }
    }
    // Without tenants the tree is empty.
    for tenant in names {
        assert_eq!(tree.remove_tenant(tenant), model.evict_tenant(tenant, 0), "{says}");
    }
    assert_eq!((tree.sizes(), tree.node_count()), ((Vec::new(), Vec::new(), 0), 0), "{says}");
}

#[test]
fn text_as_the_model_says() {
    for policy in EvictionPolicy::ALL {
        for seed in 0..seeds(30) {
            history::<StringTree>(seed, 1, policy, 300);
        }
    }
}

#[test]
fn tokens_as_the_model_says() {
    for policy in EvictionPolicy::ALL {
        for seed in 0..seeds(90) {
            let page = [1, 2, 4, 16, 16, 128][seed as usize % 6];
            history::<TokenTree>(seed, page, policy, if page > 16 { 60 } else { 3200 / (page + 10) });
        }
    }
}
