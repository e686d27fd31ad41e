// Sentry's own client against the fake of Sentry.
import * as api from '@sentry/api';
import { assert, effects, fake, fault, state } from './common.mjs';

const sentry = fake('sentry');
const options = (token) => ({ baseUrl: sentry.url, headers: { authorization: `Bearer ${token}` } });
const { organization: organization_id_or_slug, project: project_id_or_slug, issue: issue_id } = sentry;
const path = { organization_id_or_slug, issue_id };
const own = options(sentry.token);

await effects(sentry, 0, async () => {
    const issues = await api.listAProject_sIssues({ ...own, path: { organization_id_or_slug, project_id_or_slug }, query: { query: 'is:unresolved' } });
    assert.deepEqual(issues.data.map((issue) => issue.id), [issue_id]);
    const issue = await api.retrieveAnIssue({ ...own, path });
    assert.equal(issue.data.status, 'unresolved');
    const events = await api.listAnIssue_sEvents({ ...own, path });
    assert.deepEqual(events.data.map((event) => event.eventID), [sentry.event]);
    const event = await api.retrieveAnIssueEvent({ ...own, path: { ...path, event_id: 'latest' } });
    assert.equal(event.data.groupID, issue_id);
});

// The routes of effectd, and the functions of this client for the same. Four of the five lead to the issue's address without its
// organisation: this client, sent there, has the same effect and gets the same answer.
const functions = {
    'GET /api/0/projects/{organization_slug}/{project_slug}/issues/': api.listAProject_sIssues,
    'GET /api/0/issues/{issue_id}/': api.retrieveAnIssue,
    'PUT /api/0/issues/{issue_id}/': api.updateAnIssue,
    'GET /api/0/issues/{issue_id}/events/': api.listAnIssue_sEvents,
    'GET /api/0/issues/{issue_id}/events/{event_id}/': api.retrieveAnIssueEvent,
};
assert.deepEqual(Object.keys(functions).sort(), [...sentry.routes].sort());
const words = { organization_slug: organization_id_or_slug, project_slug: project_id_or_slug, project_id_or_slug, event_id: sentry.event };
const at = (answer) => new URL(answer.request.url).pathname;
for (const [route, ask] of Object.entries(functions)) {
    const [method, url] = route.split(' ');
    const change = method === 'PUT' ? { body: { status: 'ignored' } } : {};
    const given = { ...own, path: { ...path, ...words }, ...change };
    const expected = change.body ? 1 : 0;
    const ours = await effects(sentry, expected, () => ask({ ...given, url }));
    if (change.body) assert.equal((await api.retrieveAnIssue({ ...own, path })).data.status, change.body.status);
    const theirs = await effects(sentry, expected, () => ask(given));
    assert.equal(at(ours), at(theirs).replace(`/organizations/${organization_id_or_slug}`, ''));
    assert.equal(ours.response.status, 200, route);
    assert.deepEqual(ours.data, theirs.data, route);
}
for (const status of ['resolved', 'unresolved']) {
    const updated = await effects(sentry, 1, () => api.updateAnIssue({ ...own, path, body: { status } }));
    assert.equal(updated.data.status, status);
}
const assigned = await effects(sentry, 1, () => api.updateAnIssue({ ...own, path, body: { assignedTo: 'user:9' } }));
assert.equal(assigned.data.assignedTo.id, '9');

// What is wrong is refused by its status.
const refused = (status, work) => effects(sentry, 0, async () => assert.equal((await work()).response.status, status));
await refused(400, () => api.updateAnIssue({ ...own, path, body: { status: 'gone' } }));
await refused(401, () => api.updateAnIssue({ ...options('wrong'), path, body: { status: 'resolved' } }));
const odd = { ...own, path: { ...path, issue_id: 'a/b?c' } };
await refused(404, () => api.retrieveAnIssue(odd));
// Only the organisation knows a short id.
const short = { ...own, path: { ...path, issue_id: sentry.short_id } };
assert.equal((await api.retrieveAnIssue(short)).data.id, issue_id);
for (const [given, id] of [[odd, 'a%2Fb%3Fc'], [short, sentry.short_id]]) {
    const answer = await api.retrieveAnIssue({ ...given, url: '/api/0/issues/{issue_id}/' });
    assert.deepEqual([at(answer), answer.response.status], [`/api/0/issues/${id}/`, 404]);
}

// Faults are what they say.
for (const [name, expected] of [['lost', 1], ['truncated', 1], ['broken', 1], ['later:1', 0], ['status:503', 0]]) {
    await fault(sentry, name);
    const update = async () => {
        const { data, error } = await api.updateAnIssue({ ...own, path, body: { status: 'resolved' } });
        if (error !== undefined || !data?.id) throw new Error('no issue');
    };
    await effects(sentry, expected, () => assert.rejects(update, undefined, name));
}
assert.equal((await state(sentry)).state.issue.status, 'resolved');
console.log('sentry: @sentry/api accepts the fake');
