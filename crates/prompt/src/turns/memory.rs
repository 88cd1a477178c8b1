//! Cache of recent chats, bounded in bytes and indexed by hashes of the beginnings of their lists of messages.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Memory counted for a cached chat besides its own data, in bytes.
const ENTRY: usize = 256;
/// Memory counted for each key of a cached chat, in bytes.
const KEY: usize = 48;

/// Cache of recent chats: chats by number, and numbers by key, where a key is the hash of a beginning of a chat's
/// messages.
///
/// A key leads to the last chat stored with it. A chat to which no key leads cannot be found and is dropped, so a
/// chat's later request replaces the earlier one. The chat requested least recently is dropped first.
#[derive(Debug)]
pub(super) struct Memory<T> {
    numbers: HashMap<u64, u64>,
    chats: HashMap<u64, Chat<T>>,
    /// Numbers of the cached chats by the time of their last request.
    order: BTreeMap<u64, u64>,
    clock: u64,
    bytes: usize,
    most: usize,
}

#[derive(Debug)]
struct Chat<T> {
    value: Arc<T>,
    keys: Vec<u64>,
    /// Number of keys (hashes of beginnings of messages) that still lead to the chat.
    own: usize,
    used: u64,
    bytes: usize,
}

impl<T> Memory<T> {
    /// Creates an empty cache of chats, of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        let (numbers, chats, order) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        Self { numbers, chats, order, clock: 0, bytes: 0, most }
    }

    /// Finds the cached chat that shares the longest beginning with a request. `keys`: hashes of the beginnings of the
    /// request's messages. `None` if no chat shares a beginning.
    pub(super) fn get(&mut self, keys: &[u64]) -> Option<Arc<T>> {
        let number = *keys.iter().rev().find_map(|key| self.numbers.get(key))?;
        self.clock += 1;
        let chat = self.chats.get_mut(&number)?;
        self.order.remove(&chat.used);
        self.order.insert(self.clock, number);
        chat.used = self.clock;
        Some(chat.value.clone())
    }

    /// Stores a chat. Returns the chats dropped to stay within the memory limit, for the caller to free outside the
    /// lock.
    pub(super) fn put(&mut self, keys: Vec<u64>, value: T, bytes: usize) -> Vec<Arc<T>> {
        let mut gone = Vec::new();
        let bytes = bytes + ENTRY + KEY * keys.len();
        if bytes > self.most / 4 || keys.is_empty() {
            return gone;
        }
        self.clock += 1;
        let number = self.clock;
        for key in &keys {
            let Some(other) = self.numbers.insert(*key, number) else { continue };
            if let Some(chat) = self.chats.get_mut(&other) {
                chat.own -= 1;
                if chat.own == 0 {
                    gone.extend(self.remove(other));
                }
            }
        }
        let own = keys.len();
        self.order.insert(number, number);
        self.chats.insert(number, Chat { value: Arc::new(value), keys, own, used: number, bytes });
        self.bytes += bytes;
        while self.bytes > self.most
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            gone.extend(self.remove(*oldest));
        }
        gone
    }

    fn remove(&mut self, number: u64) -> Option<Arc<T>> {
        let chat = self.chats.remove(&number)?;
        self.order.remove(&chat.used);
        self.bytes -= chat.bytes;
        for key in chat.keys {
            if self.numbers.get(&key) == Some(&number) {
                self.numbers.remove(&key);
            }
        }
        Some(chat.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound(memory: &Memory<u32>) {
        assert!(memory.bytes <= memory.most);
        assert_eq!(memory.bytes, memory.chats.values().map(|chat| chat.bytes).sum::<usize>());
        assert_eq!(memory.order.len(), memory.chats.len());
        for (number, chat) in &memory.chats {
            assert_eq!(memory.order[&chat.used], *number);
            let own = chat.keys.iter().filter(|key| memory.numbers[*key] == *number).count();
            assert!(own == chat.own && own > 0);
        }
        assert!(memory.numbers.values().all(|number| memory.chats.contains_key(number)));
    }

    #[test]
    fn the_longest_beginning_is_found_and_the_next_turn_takes_its_place() {
        let mut memory = Memory::new(100_000);
        assert!(memory.put(vec![1, 2], 12, 10).is_empty());
        assert!(memory.put(vec![1, 3], 13, 10).is_empty());
        assert_eq!(memory.get(&[1, 2, 9]).as_deref(), Some(&12));
        assert_eq!(memory.get(&[1, 9]).as_deref(), Some(&13));
        assert_eq!(memory.get(&[9]), None);
        assert_eq!(memory.get(&[]), None);
        let gone = memory.put(vec![1, 2, 4], 124, 10);
        assert_eq!(gone.iter().map(|one| **one).collect::<Vec<_>>(), [12]);
        assert_eq!(memory.get(&[1, 2]).as_deref(), Some(&124));
        sound(&memory);
    }

    #[test]
    fn what_is_used_stays_and_the_room_is_bounded() {
        let mut memory = Memory::new(100_000);
        memory.put(vec![7, 8], 0, 100);
        for at in 1..5000_u32 {
            let key = u64::from(at) * 100;
            memory.put(vec![key % 1700, key + 1], at, 1000 + at as usize % 50);
            assert!(memory.get(&[7]).is_some());
            sound(&memory);
        }
        assert!(memory.chats.len() > 50);
        assert!(memory.put(vec![5], 5, 90_000).is_empty());
        assert_eq!(memory.get(&[5]), None);
    }
}
