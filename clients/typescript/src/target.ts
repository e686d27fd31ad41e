/** Where the daemon is: what the options say, then the environment, then this folder, then this machine. */
import { statSync } from "node:fs";

export interface Options {
  url?: string;
  token?: string;
  /** A unix socket's path. */
  socket?: string;
  /** How often a request that is safe to repeat is sent at most. */
  attempts?: number;
}

export function target({ url, token, socket }: Options): { url: string; token?: string; socket?: string } {
  const { EFFECTD_URL, EFFECTD_TOKEN, EFFECTD_SOCKET, EFFECTD_STATE } = process.env;
  const address = url ?? (socket ? undefined : EFFECTD_URL);
  if (address) {
    const { protocol, hostname } = new URL(address);
    const isHere = /^(localhost|\[::1\]|127(\.\d+){3})$/.test(hostname);
    if (protocol !== "https:" && !(protocol === "http:" && isHere)) throw new TypeError(`${address}: another machine gets tokens over https only`);
    // A token of the environment is for the URL of the environment.
    return { url: address.replace(/\/+$/, ""), token: token ?? (url ? undefined : EFFECTD_TOKEN) };
  }
  const named = socket ?? (EFFECTD_SOCKET || (EFFECTD_STATE && `${EFFECTD_STATE}/run/effectd.sock`));
  const found = named || [".effectd/run/effectd.sock", "/run/effectd/effectd.sock"].find((path) => statSync(path, { throwIfNoEntry: false })?.isSocket());
  if (!found) throw new TypeError("no daemon is named or runs here: set EFFECTD_URL and EFFECTD_TOKEN, EFFECTD_SOCKET or EFFECTD_STATE");
  return { url: "http://effectd", socket: found };
}
