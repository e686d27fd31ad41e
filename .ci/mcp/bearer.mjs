// Adds the token to every request of a program that has no option for it: node --import ./bearer.mjs
import http from "node:http";
import { getGlobalDispatcher, setGlobalDispatcher } from "undici";

const authorization = `Bearer ${process.env.EFFECTD_TOKEN}`;
const withToken = (dispatch) => (options, handler) =>
  dispatch({ ...options, headers: { ...Object.fromEntries(pairs(options.headers)), authorization } }, handler);

function pairs(headers) {
  if (!Array.isArray(headers)) return Object.entries(headers ?? {});
  return headers.flatMap((name, at) => (at % 2 ? [] : [[name, headers[at + 1]]]));
}

setGlobalDispatcher(getGlobalDispatcher().compose(withToken));

const { request } = http;
http.request = (options, ...rest) => request({ ...options, headers: { ...options.headers, authorization } }, ...rest);
