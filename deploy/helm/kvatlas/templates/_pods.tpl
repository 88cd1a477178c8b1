{{/* What `kvatlas serve` and `kvatlas router` have in common. Each takes root, name, c (its values), args and keys. */}}

{{/* Flags of a map: a flag for each item of a list, and a flag alone for true. */}}
{{- define "kvatlas.settings" -}}
{{- range $flag, $value := . }}
{{- if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "--%s=%v" $flag . | quote }}
{{- end }}
{{- else if and (kindIs "bool" $value) $value }}
- {{ printf "--%s" $flag | quote }}
{{- else if and (kindIs "float64" $value) (eq (float64 (int64 $value)) $value) }}
- {{ printf "--%s=%d" $flag (int64 $value) | quote }}
{{- else if not (kindIs "bool" $value) }}
- {{ printf "--%s=%v" $flag $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Image of every container. */}}
{{- define "kvatlas.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{/* No root, no capabilities, no writing: of the pod, and of its container. */}}
{{- define "kvatlas.noRights" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "kvatlas.noRightsOfContainer" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Where pods run. Takes root, name and c. */}}
{{- define "kvatlas.nodes" -}}
{{- with .c.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .c.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- with .c.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kvatlas.selector" . | nindent 8 }}
  {{- end }}
{{- with .c.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Volumes with kvatlas's keys and the engines'. */}}
{{- define "kvatlas.secrets" -}}
{{- with .Values.keys.secretName }}
- name: keys
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.engines.keySecret.name }}
- name: engine-key
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "kvatlas.statefulset" -}}
{{- $values := .root.Values }}
{{- $c := .c }}
{{- $fullname := include "kvatlas.fullname" .root }}
{{- $admin := include "kvatlas.key" (dict "root" .root "item" $values.keys.admin) }}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $fullname }}-{{ .name }}
  labels:
    {{- include "kvatlas.labels" . | nindent 4 }}
spec:
  replicas: {{ $c.replicas }}
  serviceName: {{ $fullname }}-{{ .name }}-peers
  # All start at once. An update still replaces one after the other, and goes on when the new one is ready.
  podManagementPolicy: Parallel
  updateStrategy:
    type: RollingUpdate
  selector:
    matchLabels:
      {{- include "kvatlas.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "kvatlas.labels" . | nindent 8 }}
        {{- with $c.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $c.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "kvatlas.serviceAccount" .root }}
      {{- if $values.engines.pods }}
      # To find the pods of engines.
      automountServiceAccountToken: true
      {{- else }}
      # kvatlas does not talk to Kubernetes.
      automountServiceAccountToken: false
      {{- end }}
      # Variables named after Services would begin with KVATLAS_ as well.
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ add $c.drainDelaySeconds $c.drainTimeoutSeconds $c.stopSeconds }}
      {{- include "kvatlas.noRights" .root | nindent 6 }}
      containers:
        - name: kvatlas
          {{- include "kvatlas.image" .root | nindent 10 }}
          args:
            - {{ .name }}
            - "--bind={{ $values.listen }}:{{ $c.port }}"
            - "--admin-bind={{ $values.listen }}:{{ $values.adminPort }}"
            - "--log={{ $values.logFormat }}"
            - "--drain-delay={{ $c.drainDelaySeconds }}s"
            - "--drain-timeout={{ $c.drainTimeoutSeconds }}s"
            {{- range $values.engines.pods }}
            - {{ printf "--discover=k8s:%s/%s" (default "" .namespace) .selector | quote }}
            {{- end }}
            - "--engines-file=/etc/kvatlas/engines/engines.toml"
            {{- if $values.engines.keySecret.name }}
            - "--engine-key-file=/etc/kvatlas/engine-key/{{ $values.engines.keySecret.item }}"
            {{- end }}
            {{- with include "kvatlas.key" (dict "root" .root "item" .key) }}
            - "--key-file={{ . }}"
            {{- end }}
            {{- with $admin }}
            - "--admin-key-file={{ . }}"
            {{- end }}
            {{- if .follows }}
            {{- if and $values.engines.pods $values.engines.podDeletionCost }}
            - "--pod-deletion-cost={{ $values.engines.podDeletionCost }}"
            {{- end }}
            {{- if $c.snapshot.enabled }}
            - "--snapshot-dir=/var/lib/kvatlas/snapshots"
            - "--snapshot-every={{ $c.snapshot.every }}"
            {{- end }}
            {{- if $c.peerSnapshot }}
            {{- $giver := ternary "serve" .name $values.serve.enabled }}
            - "--peer-snapshot=dns:{{ $fullname }}-{{ $giver }}-peers:{{ (index $values $giver).port }}"
            {{- with default (include "kvatlas.key" (dict "root" .root "item" (index $values.keys $giver))) $admin }}
            - "--peer-snapshot-key-file={{ . }}"
            {{- end }}
            {{- end }}
            {{- end }}
            {{- range .args }}
            - {{ . | quote }}
            {{- end }}
            {{- with include "kvatlas.settings" $c.settings }}
            {{- . | trim | nindent 12 }}
            {{- end }}
          {{- with $c.env }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - name: http
              containerPort: {{ $c.port }}
            - name: admin
              containerPort: {{ $values.adminPort }}
          # Threads that are stuck, and nothing else: what is not known yet is no reason to start again.
          livenessProbe:
            httpGet: {path: /health, port: admin}
            periodSeconds: 10
            timeoutSeconds: 3
            failureThreshold: 3
          startupProbe:
            httpGet: {path: /health, port: admin}
            periodSeconds: 1
            timeoutSeconds: 3
            failureThreshold: 60
          # 200 when every engine has been read or given up, until the pod is asked to stop.
          readinessProbe:
            httpGet: {path: /ready, port: admin}
            periodSeconds: 2
            timeoutSeconds: 3
            failureThreshold: 1
          resources:
            {{- toYaml $c.resources | nindent 12 }}
          {{- include "kvatlas.noRightsOfContainer" . | nindent 10 }}
          volumeMounts:
            - name: engines
              mountPath: /etc/kvatlas/engines
              readOnly: true
            {{- if $values.keys.secretName }}
            - name: keys
              mountPath: /etc/kvatlas/keys
              readOnly: true
            {{- end }}
            {{- if $values.engines.keySecret.name }}
            - name: engine-key
              mountPath: /etc/kvatlas/engine-key
              readOnly: true
            {{- end }}
            - name: state
              mountPath: /var/lib/kvatlas
            - name: tmp
              mountPath: /tmp
            {{- with $c.volumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: engines
          configMap:
            name: {{ $fullname }}-engines
        {{- with include "kvatlas.secrets" .root | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        - name: tmp
          emptyDir: {}
        {{- if not (and $c.snapshot.enabled $c.snapshot.persistent) }}
        - name: state
          emptyDir:
            sizeLimit: {{ $c.snapshot.size }}
        {{- end }}
        {{- with $c.volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- include "kvatlas.nodes" . | trim | nindent 6 }}
  {{- if and $c.snapshot.enabled $c.snapshot.persistent }}
  # A snapshot is of no use to anybody but its own pod.
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: Delete
    whenScaled: Delete
  volumeClaimTemplates:
    - metadata:
        name: state
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $c.snapshot.storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ $c.snapshot.size }}
  {{- end }}
{{- end -}}

{{/* The Service of clients, and the one whose name has the addresses of all pods. Takes also hearsBefore. */}}
{{- define "kvatlas.services" -}}
{{- $fullname := include "kvatlas.fullname" .root }}
{{- if and (ne .c.service.type "ClusterIP") (not (include "kvatlas.key" (dict "root" .root "item" .key))) }}
{{- fail (printf "%s.service.type is %s, which opens it to machines outside the cluster, but no key is asked for: set keys.secretName and keys.%s" .name .c.service.type .name) }}
{{- end }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $fullname }}-{{ .name }}
  labels:
    {{- include "kvatlas.labels" . | nindent 4 }}
  {{- with .c.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .c.service.type }}
  selector:
    {{- include "kvatlas.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .c.port }}
      targetPort: http
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $fullname }}-{{ .name }}-peers
  labels:
    {{- include "kvatlas.labels" . | nindent 4 }}
    kvatlas/scrape: "true"
spec:
  clusterIP: None
  {{- if .hearsBefore }}
  # Routers that are not ready yet hear what the others have sent.
  publishNotReadyAddresses: true
  {{- else }}
  # Only pods that are ready: who is not has no snapshot worth having.
  publishNotReadyAddresses: false
  {{- end }}
  selector:
    {{- include "kvatlas.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .c.port }}
      targetPort: http
    - name: admin
      port: {{ .root.Values.adminPort }}
      targetPort: admin
{{- end -}}

{{- define "kvatlas.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "kvatlas.fullname" .root }}-{{ .name }}
  labels:
    {{- include "kvatlas.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .c.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "kvatlas.selector" . | nindent 6 }}
{{- end -}}
