"""A store that is written at random, beside a model that knows what it must hold."""

import random

from rocksdict import WriteBatch

FLUSHES = 4


class Workload:
    """Writes to a store of the binding and to a dictionary alike.

    `families` are handles of one database by name; `default` is the database itself.
    """

    def __init__(self, families, seed, keys=700):
        self.families = families
        self.models = {name: {} for name in families}
        self.rng = random.Random(seed)
        self.keys = keys

    def key(self):
        return f"key{self.rng.randrange(self.keys):06d}".encode()

    def value(self):
        # Half of it repeats, so that codecs have something to find.
        fresh = self.rng.randbytes(self.rng.randrange(1, 40))
        return fresh + b"lorem ipsum " * self.rng.randrange(8)

    def put(self, key, value, family="default"):
        self.families[family][key] = value
        self.models[family][key] = value

    def delete(self, key, family="default"):
        del self.families[family][key]
        self.models[family].pop(key, None)

    def delete_range(self, begin, end, family="default"):
        self.families[family].delete_range(begin, end)
        model = self.models[family]
        for key in [k for k in model if begin <= k < end]:
            del model[key]

    def batch(self, count, family="default"):
        """One write batch of puts, with a delete now and then."""
        store, model = self.families[family], self.models[family]
        batch = WriteBatch(raw_mode=True)
        if family != "default":
            default = self.families["default"]
            batch.set_default_column_family(default.get_column_family_handle(family))
        for _ in range(count):
            key = self.key()
            if self.rng.random() < 0.15:
                batch.delete(key)
                model.pop(key, None)
            else:
                value = self.value()
                batch.put(key, value)
                model[key] = value
        store.write(batch)

    def phase(self, family="default", count=500):
        """About `count` operations: single puts, deletes and batches."""
        done = 0
        while done < count:
            kind = self.rng.random()
            if kind < 0.3:
                self.put(self.key(), self.value(), family)
                done += 1
            elif kind < 0.4:
                self.delete(self.key(), family)
                done += 1
            else:
                self.batch(20, family)
                done += 20

    def flush(self, family="default"):
        self.families[family].flush()

    def run(self, compact=True):
        """Several phases in every family, each flushed; in the middle all is compacted."""
        for at in range(FLUSHES):
            for family in self.families:
                self.phase(family)
                self.flush(family)
                if compact and at == FLUSHES // 2:
                    self.families[family].compact_range(None, None)

    def expected(self):
        return {name: sorted(model.items()) for name, model in self.models.items()}
