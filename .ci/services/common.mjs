// What the scripts of the three services share: the fake's address, its faults, and how many effects it has had.
import assert from 'node:assert/strict';

export { assert };

// The part of the fakes' one line of JSON that is about this service.
export const fake = (name) => JSON.parse(process.env.FAKES)[name];

// The next request fails so.
export async function fault({ control }, fault) {
    const answer = await fetch(`${control}/_fake/fault`, {
        method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ fault }),
    });
    assert.equal(answer.status, 200, fault);
}

export async function state({ control }) {
    return (await fetch(`${control}/_fake/state`)).json();
}

// Does something that must have so many effects, whether it succeeds or fails.
export async function effects(service, expected, work) {
    const before = (await state(service)).effects;
    const done = await work();
    assert.equal((await state(service)).effects - before, expected, `effects of ${work}`);
    return done;
}
