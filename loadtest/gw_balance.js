// Balance inquiries with k6, for those who have it: k6 run loadtest/gw_balance.js
// The gateway must run under the profile loadtest (loadtest/loadtest.toml), or with a key of its own in KEY.
import http from 'k6/http';
import { check } from 'k6';

const target = __ENV.TARGET || 'http://127.0.0.1:8080';
const key = __ENV.KEY || 'loadtest-key';

export const options = {
  scenarios: {
    balance: {
      executor: 'constant-arrival-rate',
      rate: Number(__ENV.RATE || 1000),
      timeUnit: '1s',
      duration: __ENV.DURATION || '30s',
      preAllocatedVUs: Number(__ENV.VUS || 64),
    },
  },
  thresholds: { checks: ['rate>0.999'] },
};

export default function () {
  const account = String(10000000000000 + Math.floor(Math.random() * 1000000));
  const response = http.post(`${target}/api/gateway/balance`, JSON.stringify({ accountNo: account }), {
    headers: { 'Content-Type': 'application/json', 'X-API-Key': key },
  });
  check(response, { 'status is 200': (answer) => answer.status === 200 });
}
