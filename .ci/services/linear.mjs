// Linear's own client against the fake of Linear.
import { LinearClient } from '@linear/sdk';
import { randomUUID } from 'node:crypto';
import { assert, effects, fake, fault, state } from './common.mjs';

const linear = fake('linear');
const client = new LinearClient({ apiKey: linear.token, apiUrl: linear.url });

// Reads have no effect.
await effects(linear, 0, async () => {
    const issue = await client.issue(linear.issue);
    assert.equal(issue.id, linear.issue);
    assert.ok(issue.title && issue.url && issue.createdAt instanceof Date);
    const page = await client.issues({ first: 1, filter: { team: { id: { eq: linear.team } } } });
    assert.equal(page.nodes.length, 1);
    assert.equal(typeof page.pageInfo.hasNextPage, 'boolean');
});

// A UUID of the caller is the id, and the same one does not create another issue.
const id = randomUUID();
const input = { id, teamId: linear.team, title: 'Milk', description: 'Two bottles', priority: 2 };
const created = await effects(linear, 1, () => client.createIssue(input));
assert.equal(created.success, true);
assert.equal((await created.issue).id, id);
await effects(linear, 0, () => assert.rejects(() => client.createIssue(input)));
const updated = await effects(linear, 1, () => client.updateIssue(id, { title: 'Oat milk', stateId: linear.state }));
assert.equal((await updated.issue).title, 'Oat milk');
const comment = await effects(linear, 1, () => client.createComment({ issueId: id, body: 'In the fridge' }));
assert.equal((await comment.comment).body, 'In the fridge');
const archived = await effects(linear, 1, () => client.archiveIssue(id));
assert.equal(archived.success, true);

// What is wrong is refused in GraphQL's way.
await effects(linear, 0, () => assert.rejects(() => client.createIssue({ title: 'No team' })));
await effects(linear, 0, () => assert.rejects(() => client.issue(randomUUID()), /not found/i));
const stranger = new LinearClient({ apiKey: 'wrong', apiUrl: linear.url });
await effects(linear, 0, () => assert.rejects(() => stranger.createIssue(input), /auth/i));

// Faults are what they say.
for (const [name, expected] of [['lost', 1], ['truncated', 1], ['wrong_type', 1], ['broken', 1], ['later:1', 0], ['status:503', 0], ['refused:INTERNAL', 0]]) {
    await fault(linear, name);
    await effects(linear, expected, () => assert.rejects(() => client.createIssue({ teamId: linear.team, title: name }), undefined, name));
}
assert.ok((await state(linear)).state);
console.log('linear: @linear/sdk accepts the fake');
