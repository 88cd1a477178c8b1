//! Tests of the stream machine against a model of an engine and its sockets, with random faults.
//!
//! The model records which batches the engine published between any two restarts. So the tests check at every step, and
//! not only at rest, that a stream which the machine trusts is exact: see `check_always`.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::super::{Effects, Machine, MachineConfig, Verdict};

/// Identity of a batch: number of the engine's restarts so far, and sequence number.
type Batch = (u32, u64);

/// Kind of a batch, by the effect that it has on the stream machine.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    /// The batch clears all blocks.
    Clears,
    /// The batch cannot be decoded as published, only as replayed.
    Garbled,
    /// The batch cannot be decoded at all.
    Unreadable,
    /// The batch has an event of an unknown type.
    UnknownEvents,
}

fn kind((life, seq): Batch) -> Kind {
    match Dice(u64::from(life) << 32 | seq).below(100) {
        0 => Kind::Clears,
        1 | 2 => Kind::Garbled,
        3 => Kind::Unreadable,
        4 => Kind::UnknownEvents,
        _ => Kind::Plain,
    }
}

fn payload(batch: Batch, published: bool) -> Vec<u8> {
    let readable = match kind(batch) {
        Kind::Garbled => !published,
        Kind::Unreadable => false,
        Kind::Plain | Kind::Clears | Kind::UnknownEvents => true,
    };
    format!("{}/{}/{readable}", batch.0, batch.1).into_bytes()
}

/// Returns the identity of the batch in a payload, and true if it can be decoded.
fn batch(payload: &[u8]) -> (Batch, bool) {
    let text = std::str::from_utf8(payload).unwrap();
    let parts: Vec<_> = text.split('/').collect();
    ((parts[0].parse().unwrap(), parts[1].parse().unwrap()), parts[2] == "true")
}

/// Random number generator of the tests, by the algorithm SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Record of the machine's requested actions, and of the batches whose blocks are held.
#[derive(Default)]
struct Reader {
    held: Vec<Batch>,
    /// True if the held batches are complete although they do not begin with batch 0, because the engine cleared all
    /// blocks.
    cleared: bool,
    /// True if an event of an unknown type may have removed some of the held blocks.
    strange: bool,
    question: Option<u64>,
    questions: u32,
    cancelled: bool,
    reconnect: bool,
}

impl Effects<Vec<u8>> for Reader {
    fn apply(&mut self, seq: u64, payload: &Vec<u8>, _: bool) -> Verdict {
        let (batch, readable) = batch(payload);
        assert_eq!(batch.1, seq);
        if !readable {
            return Verdict::Refused;
        }
        if let Some((_, last)) = self.held.last() {
            assert_eq!(seq, last + 1, "each once, none left out");
        }
        self.held.push(batch);
        match kind(batch) {
            Kind::Clears => {
                (self.cleared, self.strange) = (true, false);
                Verdict::Cleared
            }
            Kind::UnknownEvents => {
                self.strange = true;
                Verdict::UnknownEvents
            }
            _ => Verdict::Whole,
        }
    }
    fn clear(&mut self) {
        self.held.clear();
        (self.cleared, self.strange) = (false, false);
    }
    fn ask(&mut self, from: u64) {
        assert!(self.question.is_none() || self.cancelled, "one question at a time");
        (self.question, self.cancelled) = (Some(from), true);
        self.questions += 1;
    }
    fn cancel(&mut self) {
        (self.question, self.cancelled) = (None, true);
    }
    fn reconnect(&mut self) {
        self.reconnect = true;
    }
}

struct World {
    dice: Dice,
    now: Duration,
    machine: Machine<Vec<u8>>,
    reader: Reader,
    // The engine.
    life: u32,
    published: u64,
    keeps: u64,
    // The live connection: what is on its way, and whether it ends after that.
    connected: bool,
    subscribed: bool,
    broken: bool,
    line: VecDeque<Batch>,
    // The replay socket.
    replay: bool,
    replay_alive: bool,
    /// Batches of a replay answer in transit; `None` marks the end of the answer.
    answers: VecDeque<Option<Batch>>,
    /// Number of the engine's restarts before it gave the replay answer that is in transit; `None` if a part of the
    /// answer was lost.
    answering: Option<u32>,
    /// Highest sequence number that the machine has received since it last connected, by the number of the engine's
    /// restarts before.
    told: HashMap<u32, u64>,
    /// Number of replay requests so far, and the time of the last one.
    asked: (u32, Duration),
    /// Number of complete replay answers in a row after which the machine had still not decided if the engine has
    /// restarted.
    unresolved: u32,
    /// Number of complete replay answers in a row after which batches from before a restart were still held.
    wrong: u32,
    /// True if the model produces random faults.
    faults: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let replay = !dice.one_in(4);
        let keeps = if dice.one_in(3) { 3 + dice.below(12) } else { 100_000 };
        let buffer_batches = if dice.one_in(3) { 4 } else { 1000 };
        let settings = MachineConfig { buffer_batches, ..super::config() };
        Self {
            machine: Machine::new(settings, Default::default(), replay, Default::default(), Duration::ZERO),
            dice,
            now: Duration::ZERO,
            reader: Reader::default(),
            life: 1,
            published: 0,
            keeps,
            connected: false,
            subscribed: false,
            broken: false,
            line: VecDeque::new(),
            replay,
            replay_alive: true,
            answers: VecDeque::new(),
            answering: None,
            told: HashMap::new(),
            asked: (0, Duration::ZERO),
            unresolved: 0,
            wrong: 0,
            faults: true,
        }
    }

    fn publish(&mut self) {
        let batch = (self.life, self.published);
        self.published += 1;
        if !self.subscribed || self.broken || (self.faults && self.dice.one_in(12)) {
            return;
        }
        self.line.push_back(batch);
        if self.faults && self.dice.one_in(15) {
            self.line.push_back(batch);
        }
        if self.faults && self.dice.one_in(15) && self.line.len() > 1 {
            let last = self.line.len() - 1;
            self.line.swap(last, last - 1);
        }
    }

    fn restart(&mut self) {
        (self.life, self.published) = (self.life + 1, 0);
        self.broken = self.connected;
        self.answers.truncate(self.dice.below(4) as usize);
        if self.answers.back().is_some_and(Option::is_some) || self.dice.one_in(2) {
            self.reader.question = None; // Lost with the connection.
        }
        self.answering = None;
        if !self.replay {
            // Nobody could tell the lives apart if the second went on with just the number at which the first ended.
            while self.connected {
                self.deliver();
            }
            self.connect();
            self.subscribed = true;
            self.line.push_back((self.life, 0));
            self.published = 1;
            while !self.line.is_empty() {
                self.deliver();
            }
        }
    }

    fn connect(&mut self) {
        (self.connected, self.subscribed, self.broken) = (true, false, false);
        self.machine.connected(self.now, &mut self.reader);
    }

    fn deliver(&mut self) {
        if let Some(batch) = self.line.pop_front() {
            self.tell(batch);
            self.machine.live(self.now, batch.1, payload(batch, true), &mut self.reader);
        } else if self.broken {
            (self.connected, self.subscribed, self.broken) = (false, false, false);
            self.told.clear();
            self.unresolved = 0;
            self.machine.disconnected(&mut self.reader);
        }
        self.after();
    }

    /// Performs the actions that the machine has requested on the model's sockets.
    fn after(&mut self) {
        if std::mem::take(&mut self.reader.cancelled) {
            self.answers.clear();
            self.answering = None;
        }
        if std::mem::take(&mut self.reader.reconnect) {
            self.line.clear();
            self.told.clear();
            self.unresolved = 0;
            (self.connected, self.subscribed, self.broken) = (false, false, false);
        }
    }

    fn serve(&mut self) {
        if !self.replay_alive {
            return;
        }
        if let Some(from) = self.reader.question.take() {
            let from = from.max(self.published.saturating_sub(self.keeps));
            self.answering = Some(self.life);
            for seq in from..self.published {
                // A socket that is full drops what is behind, never the first.
                if seq == from || !(self.faults && self.dice.one_in(60)) {
                    self.answers.push_back(Some((self.life, seq)));
                } else {
                    self.answering = None;
                }
            }
            if !(self.faults && self.dice.one_in(8)) {
                self.answers.push_back(None);
            }
        }
    }

    fn answer(&mut self) {
        match self.answers.pop_front() {
            Some(Some(batch)) => {
                self.tell(batch);
                self.machine.reply(self.now, batch.1, payload(batch, false), &mut self.reader);
            }
            Some(None) => {
                let answered = self.answering.take();
                self.machine.reply_end(self.now, &mut self.reader);
                if answered == Some(self.life) {
                    self.check_answered();
                }
            }
            None => {}
        }
        self.after();
    }

    fn tell(&mut self, (life, seq): Batch) {
        let told = self.told.entry(life).or_default();
        *told = seq.max(*told);
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        if self.machine.wake(self.now).is_some_and(|at| at <= self.now) {
            self.machine.tick(self.now, &mut self.reader);
            self.after();
        }
    }

    /// Checks the conditions that must hold at every step: a trusted stream holds exactly what the engine published
    /// since one restart.
    fn check_always(&mut self) {
        if self.asked.0 != self.reader.questions || self.reader.question.is_some() {
            self.asked = (self.reader.questions, self.now);
        }
        if !self.machine.trusted() {
            self.asked.1 = self.now;
            return;
        }
        assert!(!self.reader.strange, "something unknown may have removed what is held");
        // Each number after the one before, which `apply` makes sure of; from the beginning, or it says so.
        let held = &self.reader.held;
        let begins_late = held.first().is_some_and(|(_, first)| *first > 0);
        assert!(!begins_late || self.machine.partial() || self.reader.cleared, "not said to be partial");
        // All that it was told of.
        if let Some((life, last)) = held.last() {
            let told = self.told.get(life).copied().unwrap_or_default();
            assert!(told <= *last, "told of {told}, holds {last}");
        }
        if !self.machine.is_unproven() {
            assert!(held.iter().all(|(life, _)| *life == held[0].0), "two lives: {held:?}");
        } else {
            // It has taken a number for a sign that the engine is the same; that is not to stay so.
            let unasked = self.now - self.asked.1;
            assert!(unasked < Duration::from_secs(12), "not asked for {unasked:?} whether the engine is the same");
        }
    }

    /// Checks the machine's state after the running engine has answered a replay request.
    fn check_answered(&mut self) {
        let open = self.machine.trusted() && self.machine.is_unproven() && self.keeps > self.published;
        self.unresolved = if open { self.unresolved + 1 } else { 0 };
        assert!(self.unresolved < 3, "whole answers do not show whether the engine is the same");
        // Of a question put while nothing was held, nobody knows what must be in the answer.
        let held = &self.reader.held;
        let wrong = self.machine.trusted() && held.iter().any(|(life, _)| *life != self.life);
        self.wrong = if wrong && !self.machine.is_unproven() { self.wrong + 1 } else { 0 };
        assert!(self.wrong < 2, "holds {held:?} in life {}", self.life);
    }

    /// Makes the model's engine busy: delivers live batches while the replay socket does not answer.
    fn busy(&mut self) {
        for round in 0..40 {
            if round % 4 == 0 {
                self.publish();
            }
            self.deliver();
            self.pass(300);
            self.check_always();
        }
    }

    /// Restarts the engine unnoticed, with sequence numbers that continue those from before the restart, and a slow
    /// replay socket.
    fn restart_unheard(&mut self) {
        self.restart();
        while self.connected {
            self.deliver();
        }
        let next = self.reader.held.last().map_or(0, |(_, last)| last + 1);
        (self.published, self.replay_alive) = (next, false);
        self.connect();
        self.subscribed = true;
        self.faults = false;
        self.busy();
        self.faults = true;
    }

    fn step(&mut self) {
        match self.dice.below(200) {
            0..60 => self.publish(),
            60..120 => self.deliver(),
            120..140 => self.serve(),
            140..180 => self.answer(),
            180..186 => {
                let millis = self.dice.below(300);
                self.pass(millis);
            }
            186 if self.dice.one_in(2) => self.pass(6000),
            186 if self.replay && self.dice.one_in(3) => self.restart_unheard(),
            186 => self.busy(),
            187..192 if !self.connected => self.connect(),
            187..192 => self.subscribed |= !self.broken,
            192 if self.dice.one_in(3) => self.restart(),
            193 if self.dice.one_in(3) => self.broken = self.connected,
            194 => self.replay_alive = false,
            195..197 => self.replay_alive = true,
            _ => {}
        }
    }

    /// Makes the model deliver everything from now on, without random faults.
    fn quiet(&mut self) {
        (self.faults, self.replay_alive) = (false, true);
        for round in 0..900 {
            if !self.connected {
                self.connect();
            }
            self.subscribed |= !self.broken;
            if round == 300 {
                self.publish();
                self.publish();
                // What ends with a batch that cannot be read ends with nothing.
                while kind((self.life, self.published - 1)) != Kind::Plain {
                    self.publish();
                }
            }
            while !self.line.is_empty() || self.broken {
                self.deliver();
            }
            while self.reader.question.is_some() || !self.answers.is_empty() {
                self.serve();
                self.answer();
            }
            self.pass(100);
        }
    }

    fn check(&self, seed: u64) {
        let at = format!("seed {seed}, after {:?}, {:?}", self.now, self.machine.counts);
        assert!(self.machine.trusted() != self.reader.strange, "trusted or not, and should be otherwise: {at}");
        let first = self.reader.held.first().unwrap_or_else(|| panic!("nothing is held: {at}")).1;
        let expected: Vec<Batch> = (first..self.published).map(|seq| (self.life, seq)).collect();
        assert_eq!(self.reader.held, expected, "{at}");
        assert!(first == 0 || self.machine.partial() || self.reader.cleared, "not said to be partial: {at}");
        let unreadable =
            (0..self.published).any(|seq| matches!(kind((self.life, seq)), Kind::Unreadable | Kind::UnknownEvents));
        if self.replay && self.keeps > self.published && !unreadable && !self.reader.cleared {
            assert_eq!(first, 0, "could be whole: {at}");
        }
        assert_eq!(self.machine.last(), self.published.checked_sub(1));
        assert_eq!(self.machine.waiting(), 0);
    }
}

#[test]
fn every_quiet_point_is_exact() {
    for seed in 0..kvatlas_testing::seeds(3000) {
        let mut world = World::new(seed);
        for _ in 0..3 {
            world.faults = true;
            for _ in 0..400 {
                world.step();
                world.check_always();
            }
            world.quiet();
            world.check(seed);
        }
    }
}
