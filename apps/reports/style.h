#pragma once

// The style sheet and the live page's script, with their SHA-256 in base64 (content_policy()).
namespace starling {

inline constexpr const char* kStyleHash = "Ckrya0PPYgrBmOTBOcp3L57raHRC7bUB4oxyTRKW/Xs=";
inline constexpr const char* kScriptHash = "wZssfPly3+iMAS6ssRymgNjXjrwqBYy0b2CVt5Ru7DY=";

inline constexpr const char* kReportStyle = R"css(
:root{color-scheme:light dark;--back:#fff;--card:#f8fafc;--text:#0f172a;--soft:#475569;--rule:#e2e8f0;
--0:#2563eb;--1:#dc2626;--2:#059669;--3:#b45309;--4:#7c3aed;--5:#0e7490;--6:#be185d;--7:#4d7c0f}
@media(prefers-color-scheme:dark){:root{--back:#0b1120;--card:#131c31;--text:#e2e8f0;--soft:#94a3b8;--rule:#26334d;
--0:#60a5fa;--1:#f87171;--2:#34d399;--3:#fbbf24;--4:#a78bfa;--5:#22d3ee;--6:#f472b6;--7:#a3e635}
svg.topology{filter:invert(.93) hue-rotate(180deg)}}
.c0{--c:var(--0)}.c1{--c:var(--1)}.c2{--c:var(--2)}.c3{--c:var(--3)}.c4{--c:var(--4)}.c5{--c:var(--5)}.c6{--c:var(--6)}.c7{--c:var(--7)}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:0 16px 48px;background:var(--back);color:var(--text);font:15px/1.5 system-ui,"Helvetica Neue",Arial,sans-serif}
header{display:flex;align-items:baseline;gap:12px}
h1{font-size:22px;margin:16px 0 0}h2{font-size:18px;margin:32px 0 8px}
#state{color:var(--soft);margin:0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px 4px 0;text-align:left;border-bottom:1px solid var(--rule);vertical-align:bottom;max-width:420px;overflow-wrap:break-word}
th{color:var(--soft);font-weight:600}.runs{font-size:12px}.runs th,.runs td{padding-right:8px}.runs td:first-child,.differences td{min-width:120px;overflow-wrap:anywhere}
.key{display:inline-block;width:10px;height:10px;border-radius:5px;margin-right:6px;background:var(--c)}
.key.again{background:none;border:2.5px solid var(--c)}
.legend{margin:0 0 8px}.legend span{display:inline-block;margin-right:16px}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px}
figure{margin:0 0 16px;padding:12px;background:var(--card);border:1px solid var(--rule);border-radius:8px;min-width:0}
.figures figure{margin:0}
.sample{white-space:pre-wrap;overflow-wrap:anywhere;border-left:3px solid;padding-left:12px}
figcaption{font-weight:600;margin-bottom:6px;overflow-wrap:anywhere}
svg{display:block;max-width:100%;height:auto}svg.chart{width:100%}svg.timeline{min-width:640px;width:100%}
.axes>input{position:absolute;opacity:0}
.axes>label{display:inline-block;font-size:12px;padding:1px 8px;margin:0 4px 4px 0;border:1px solid var(--rule);border-radius:10px;cursor:pointer;color:var(--soft)}
.axes>input:checked+label{color:var(--text);border-color:var(--soft)}
.axes>input:focus-visible+label{outline:2px solid var(--0)}
.axes>.panel{display:none}
.axes>.panel:only-of-type,.axes>input:nth-of-type(1):checked~.panel:nth-of-type(1),.axes>input:nth-of-type(2):checked~.panel:nth-of-type(2),.axes>input:nth-of-type(3):checked~.panel:nth-of-type(3){display:block}
.grid{stroke:var(--rule);fill:none}
.tick,.label,.number{fill:var(--soft);font:11px system-ui,Arial,sans-serif}.label{font-size:12px}
.number{fill:var(--text)}.number.dark{fill:var(--back)}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}.pale{opacity:.25;stroke-width:1}
.dashed .line{stroke-dasharray:5 3}
.chart circle{fill:var(--c)}.tile{fill:var(--0);stroke:var(--rule);stroke-width:.5}.span{fill:var(--c)}
.none{color:var(--soft)}
summary{cursor:pointer;font-size:12px;color:var(--soft)}
@media(max-width:560px){.tick,.number{font-size:17px}.label{font-size:18px}.timeline .tick{font-size:11px}}
@media print{:root{--back:#fff;--card:#fff;--text:#000;--soft:#333;--rule:#ccc}body{max-width:none}figure{break-inside:avoid}details,.axes>label{display:none}}
)css";

/// Renews the page's content every two seconds; what was chosen and opened stays so.
inline constexpr const char* kFollowScript = R"js(
const main=document.getElementById('main'),state=document.getElementById('state');let tag='';
async function look(){
 try{
  const answer=await fetch('body',{headers:tag?{'If-None-Match':tag}:{},cache:'no-store'});
  if(answer.status===200){
   const on=[...main.querySelectorAll('input:checked')].map(e=>e.id),open=[...main.querySelectorAll('details[open]')].map(e=>e.id);
   tag=answer.headers.get('ETag')||'';
   main.replaceChildren(...new DOMParser().parseFromString(await answer.text(),'text/html').body.childNodes);
   for(const id of on){const e=document.getElementById(id);if(e)e.checked=true}
   for(const id of open){const e=document.getElementById(id);if(e)e.open=true}
  }
  state.textContent='live';
 }catch(e){state.textContent='starling-report has ended; this is what it said last'}
 setTimeout(look,2000);
}
look();
)js";

}  // namespace starling
