// Slack's own client against the fake of Slack.
import { WebClient } from '@slack/web-api';
import { assert, effects, fake, fault, state } from './common.mjs';

const slack = fake('slack');
const quiet = { slackApiUrl: slack.url, retryConfig: { retries: 0 }, rejectRateLimitedCalls: true, logLevel: 'error' };
const client = new WebClient(slack.token, quiet);
const { channel } = slack;

const who = await effects(slack, 0, () => client.auth.test());
assert.ok(who.ok && who.team_id && who.bot_id);
const metadata = { event_type: 'effectd_approval', event_payload: { approval_id: 'a', action_id: 'b' } };
const blocks = [
    { type: 'section', text: { type: 'plain_text', text: 'files.write_text', emoji: false } },
    { type: 'actions', elements: [{ type: 'button', action_id: 'approve', text: { type: 'plain_text', text: 'Approve' }, value: 'x' }] },
];
const posted = await effects(slack, 1, () => client.chat.postMessage({ channel, text: 'a &lt;b&gt;', blocks, metadata, unfurl_links: false }));
assert.equal(posted.message.text, 'a &lt;b&gt;');
const { ts } = posted;
const reply = await effects(slack, 1, () => client.chat.postMessage({ channel: slack.channel_name, text: 'below', thread_ts: ts }));
assert.notEqual(reply.ts, ts);

// The history has the metadata if it is asked for, and only what was sent in that time.
const second = Number(ts.split('.')[0]);
const around = { channel, oldest: String(second - 60), latest: String(second + 60), limit: 200 };
await effects(slack, 0, async () => {
    const { messages } = await client.conversations.history({ ...around, include_all_metadata: true });
    assert.deepEqual(messages.map((message) => message.metadata), [metadata]);
    const plain = await client.conversations.history(around);
    assert.equal(plain.messages[0].metadata, undefined);
    const later = await client.conversations.history({ ...around, oldest: String(second + 60), latest: String(second + 120) });
    assert.deepEqual(later.messages, []);
    const thread = await client.conversations.replies({ channel, ts });
    assert.equal(thread.messages.length, 2);
});
const updated = await effects(slack, 1, () => client.chat.update({ channel, ts, text: 'approved', blocks: blocks.slice(0, 1) }));
assert.equal(updated.ts, ts);
await effects(slack, 1, () => client.chat.postEphemeral({ channel, user: 'U0123456789', text: 'you may not' }));
await effects(slack, 1, () => client.chat.delete({ channel, ts: reply.ts }));

// What is wrong has status 200 and says so.
const refused = (code, work) => effects(slack, 0, () => assert.rejects(work, (error) => error.data?.error === code, code));
await refused('channel_not_found', () => client.chat.postMessage({ channel: 'C0000000000', text: 'x' }));
await refused('no_text', () => client.chat.postMessage({ channel, text: '' }));
await refused('message_not_found', () => client.chat.update({ channel, ts: '1.000001', text: 'x' }));
await refused('invalid_auth', () => new WebClient('xoxb-wrong', quiet).chat.postMessage({ channel, text: 'x' }));

// Faults are what they say.
for (const [name, expected] of [['lost', 1], ['truncated', 1], ['wrong_type', 1], ['broken', 1], ['later:1', 0], ['status:503', 0], ['refused:fatal_error', 0]]) {
    await fault(slack, name);
    const post = () => client.chat.postMessage({ channel, text: name });
    await effects(slack, expected, () => assert.rejects(async () => {
        const answer = await post();
        // A page for people is no error to this client.
        if (!answer.ts) throw new Error('no message');
    }, undefined, name));
}
assert.ok((await state(slack)).state.messages.some((message) => message.text === 'lost'));
console.log('slack: @slack/web-api accepts the fake');
