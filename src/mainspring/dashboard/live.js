// Live events over the bus's own protocol, with the client every other page would use.
//
// Following a topic takes a group, and a group outlives its connection. So each follower has a group of its own, which
// is forgotten when it stops; groups that a closed tab left behind are forgotten by the next page whose token may do so.

import { connect, newId } from "../client.js";
import { groupPath } from "./api.js";
import { OWN_GROUPS } from "./store.js";

export class Live extends EventTarget {
  constructor(api) {
    super();
    this.api = api;
    this.state = "closed";
    this.client = null;
    this.following = new Set(); // what to call when the page goes
  }

  start() {
    const onState = (state) => {
      this.state = state;
      this.dispatchEvent(new Event("state"));
    };
    this.client = connect(new URL(".", document.baseURI).href, { token: this.api.token || undefined, onState });
  }

  /** Have `take(event)` called for every new event of a topic until the result is called. */
  follow(topic, take, failed = () => {}) {
    const group = OWN_GROUPS + newId();
    const handler = (event) => {
      event.ack();
      take(event);
    };
    const subscription = this.client.subscribe(topic, { group, from: "latest", maxInflight: 500 }, handler, failed);
    subscription.confirmed.catch(failed);
    const stop = async () => {
      if (!this.following.delete(stop)) return;
      await subscription.close();
      await this.forget(topic, group);
    };
    this.following.add(stop);
    return stop;
  }

  async forget(topic, group) {
    await this.api.send("DELETE", groupPath(topic, group), undefined, { keepalive: true }).catch(() => {}); // a later page tries again
  }

  /** The page goes: leave at once what can be left without waiting. */
  leave() {
    for (const stop of this.following) stop();
  }

  /** Know at once when a group gives up on an event; the topic is there from the first dead letter on. */
  watchDeadLetters(tell) {
    return this.follow("system.bus.dlq", tell);
  }

  /** Forget groups of pages that were closed without saying goodbye. */
  async sweep(groups) {
    const left = groups.filter(({ members }) => members === 0);
    await Promise.all(left.slice(0, 50).map(({ topic, group }) => this.forget(topic, group)));
  }
}
