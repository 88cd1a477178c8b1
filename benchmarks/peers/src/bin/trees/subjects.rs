//! The trees under measurement, behind what the measurements need.

use std::sync::Arc;

pub trait Subject: Send + Sync {
    type Key: ?Sized + Sync;

    fn make() -> Self;
    fn insert(&self, key: &Self::Key, tenant: &str);
    fn matched(&self, key: &Self::Key) -> usize;
    fn match_and_insert(&self, key: &Self::Key, tenant: &str) -> usize;
    /// Evicts until all tenants together hold at most so much.
    fn evict_to(&self, units: usize);
    /// Evicts until one tenant holds at most so much.
    fn evict_tenant(&self, tenant: &str, units: usize);
    fn total(&self) -> usize;
    fn tenant_size(&self, tenant: &str) -> usize;
}

macro_rules! subjects {
    ($($name:ident($tree:path, $key:ty): $insert:ident, $count:ident, $evict_to:ident, $total:ident, $evict:ident, $size:ident, $tenant:expr;)*) => {$(
        pub struct $name($tree);

        impl Subject for $name {
            type Key = $key;

            fn make() -> Self {
                Self(<$tree>::new())
            }
            fn insert(&self, key: &$key, tenant: &str) {
                self.0.$insert(key, tenant);
            }
            fn matched(&self, key: &$key) -> usize {
                self.0.match_prefix_with_counts(key).$count
            }
            fn match_and_insert(&self, key: &$key, tenant: &str) -> usize {
                self.0.match_and_insert(key, tenant).$count
            }
            fn evict_to(&self, units: usize) {
                self.0.$evict_to(units);
            }
            fn evict_tenant(&self, tenant: &str, units: usize) {
                self.0.$evict($tenant(tenant), units);
            }
            fn total(&self) -> usize {
                self.0.$total()
            }
            fn tenant_size(&self, tenant: &str) -> usize {
                self.0.$size($tenant(tenant))
            }
        }
    )*};
}

fn shared(name: &str) -> &'static Arc<str> {
    use std::collections::HashMap;
    use std::sync::Mutex;
    static NAMES: Mutex<Option<HashMap<String, &'static Arc<str>>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap();
    names.get_or_insert_default().entry(name.to_owned()).or_insert_with(|| Box::leak(Box::new(Arc::from(name))))
}

fn plain(name: &str) -> &str {
    name
}

subjects! {
    OurText(kvatlas_trees::string_tree::StringTree, str): insert_text, matched, evict_to_size, total_size, evict_tenant, tenant_size, plain;
    OurTokens(kvatlas_trees::token_tree::TokenTree, [u32]): insert_tokens, matched, evict_to_size, total_size, evict_tenant, tenant_size, plain;
    PeerText(kv_index::StringTree, str): insert_text, matched_char_count, evict_tenant_by_size, total_char_size, evict_by_tenant, tenant_char_size, shared;
    PeerTokens(kv_index::TokenTree, [u32]): insert_tokens, matched_token_count, evict_tenant_by_size, total_token_size, evict_tenant, tenant_token_size, shared;
}
